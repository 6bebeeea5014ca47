"""Archived logs of deleted pods: which are archived, how they are found, when they are removed."""

from pathlib import Path

import msgspec
import pytest

from gangline.api.core.container import EnvVar
from gangline.api.core.pod import Container, Pod, PodSpec
from gangline.api.core.pod_status import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodStatus,
)
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.local.kubelet import logs as archive
from gangline.local.kubelet.logs import (
    ArchivedLogs,
    archive_logs,
    archived_run_log,
    list_archived_logs,
)
from gangline.local.kubelet.volumes import pod_folders

JOB = OwnerReference(
    api_version="kubeflow.org/v1", kind="PyTorchJob", name="job", uid="job-uid", controller=True
)


def a_pod(uid: str, *owners: OwnerReference, name: str = "job-worker-0") -> Pod:
    container = Container(name="main", env=[EnvVar(name="TOKEN", value="hush")])
    metadata = ObjectMeta(name=name, namespace="team", uid=uid, owner_references=list(owners))
    return Pod(metadata=metadata, spec=PodSpec(containers=[container]))


def leave(data: Path, pod: Pod, text: str = "line\n", runs: int = 1) -> None:
    """Write logs of a pod, and delete it."""
    folders = pod_folders(data, "cluster", pod)
    for number in range(runs):
        path = folders.log("main", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number} {text}")
    archive_logs(data, folders, pod)
    assert not folders.logs.exists()


def archived(data: Path, owner: str = "job-uid", namespace: str = "team") -> list[ArchivedLogs]:
    return list(list_archived_logs(data, namespace, owner))


def text_of(
    logs: list[ArchivedLogs],
    container: str = "",
    pod: str = "job-worker-0",
    *,
    previous: bool = False,
) -> str | None:
    path = archived_run_log(logs, pod, container, previous=previous)
    return path.read_text() if path else None


def test_last_run_of_a_jobs_pod_is_archived(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1", JOB), runs=11)
    (log,) = archived(tmp_path)
    assert log.name == "job-worker-0"
    assert text_of([log]) == text_of([log], "main") == "10 line\n"
    assert not archived(tmp_path, owner="another")
    assert not archived(tmp_path, namespace="another")


def test_run_before_the_last_restart_is_archived(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1", JOB), runs=11)
    assert text_of(archived(tmp_path), previous=True) == "9 line\n"


def test_before_the_first_run_of_a_pod_comes_the_pod_that_it_replaced(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1", JOB), "of the first", runs=2)
    leave(tmp_path, a_pod("other", JOB, name="job-worker-1"), "of another")
    leave(tmp_path, a_pod("u2", JOB), "of the second")
    assert text_of(archived(tmp_path)) == "0 of the second"
    assert text_of(archived(tmp_path), previous=True) == "1 of the first"
    assert text_of(archived(tmp_path), pod="job-worker-1", previous=True) is None


@pytest.mark.parametrize("container", ["..", "other", "main/..", "/etc"])
def test_only_containers_of_the_pod_are_read(tmp_path: Path, container: str) -> None:
    leave(tmp_path, a_pod("u1", JOB))
    assert text_of(archived(tmp_path), container) is None


def test_pod_without_controller_is_not_archived(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1"))
    assert not list((tmp_path / "logs").iterdir())
    assert not (tmp_path / "kept-logs").exists()


def test_pod_record_excludes_the_environment(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1", JOB))
    assert "hush" not in (tmp_path / "kept-logs" / "u1" / "pod.json").read_text()


def test_how_a_pod_ended_is_noted(tmp_path: Path) -> None:
    ended = ContainerStateTerminated(exit_code=3, reason="Error")
    status = ContainerStatus(name="main", state=ContainerState(terminated=ended))
    pod = msgspec.structs.replace(
        a_pod("u1", JOB), status=PodStatus(phase="Failed", container_statuses=[status])
    )
    leave(tmp_path, pod)
    (log,) = archived(tmp_path)
    assert msgspec.convert(log.pod_record, Pod).status == pod.status


def test_archive_removes_the_oldest_pods_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_PODS", 3)
    for number in range(5):
        leave(tmp_path, a_pod(f"u{number}", JOB))
    assert [logs.folder.name for logs in archived(tmp_path)] == ["u2", "u3", "u4"]
    monkeypatch.setattr(archive, "MOST_BYTES", 1)
    leave(tmp_path, a_pod("u5", JOB))
    assert [logs.folder.name for logs in archived(tmp_path)] == ["u5"]


def test_folder_without_a_note_is_ignored(tmp_path: Path) -> None:
    leave(tmp_path, a_pod("u1", JOB))
    (tmp_path / "kept-logs" / "stray").mkdir()
    (tmp_path / "kept-logs" / "u1" / "pod.json").write_text("{")
    assert not archived(tmp_path)
