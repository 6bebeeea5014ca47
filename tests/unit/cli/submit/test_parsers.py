"""From flags and files to manifests; common errors and their remedies."""

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.cli.submit import flags as parsers

JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "digits"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {
                "replicas": 1,
                "template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}},
            }
        }
    },
}


def dry(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    arguments = ["submit", "pytorch", "--name", "digits", "--image", "torch:2", *flags]
    assert main.run([*arguments, "--dry-run", "python x.py", "--lr", "1"]) == ExitCode.DONE
    job: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return job


def container(job: dict[str, Any], role: str = "Master") -> dict[str, Any]:
    found: dict[str, Any] = pod(job, role)["containers"][0]
    return found


def pod(job: dict[str, Any], role: str = "Master") -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
    return spec


def test_command_is_run_by_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert container(dry(capsys))["command"] == ["sh", "-c", "python x.py --lr 1"]


def test_resource_flags_are_request_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    job = dry(capsys, "--gpus", "2", "--cpu", "4", "--memory", "8Gi", "--device", "rdma/hca=1")
    amounts = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2, "rdma/hca": "1"}
    assert container(job)["resources"] == {"requests": amounts, "limits": amounts}


def test_claims_and_folders_are_mounted(capsys: pytest.CaptureFixture[str]) -> None:
    job = dry(capsys, "--data", "set:/data", "--data-dir", "/a:/b", "--share-memory", "0")
    assert container(job)["volumeMounts"] == [
        {"name": "set", "mountPath": "/data"},
        {"name": "training-data-0", "mountPath": "/b"},
    ]
    assert pod(job)["volumes"] == [
        {"name": "set", "persistentVolumeClaim": {"claimName": "set"}},
        {"name": "training-data-0", "hostPath": {"path": "/a"}},
    ]


def test_shared_memory_is_there_unless_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert volume in pod(dry(capsys))["volumes"]
    assert "volumes" not in pod(dry(capsys, "--share-memory", "0"))


def test_policies_come_from_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--retry", "3", "--running-timeout", "1h30m", "--ttl-after-finished", "90"]
    job = dry(capsys, *flags, "--clean-task-policy", "All", "--queue", "team", "-p", "high")
    assert job["spec"]["runPolicy"] == {
        "cleanPodPolicy": "All",
        "backoffLimit": 3,
        "activeDeadlineSeconds": 5400,
        "ttlSecondsAfterFinished": 90,
        "schedulingPolicy": {"queue": "team", "priorityClass": "high"},
    }
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("flags", "fragment"),
    [
        (["--env", "NOVALUE"], "'NOVALUE': write KEY=VALUE"),
        (["--env", "1A=x"], "1A"),
        (["--data", "claim"], "PVC:/folder"),
        (["--data", "claim:data"], "absolute path"),
        (["--data", "claim:/"], "absolute path"),
        (["--data", "c:/a", "--data", "c:/b"], "already mounted"),
        (["--cpu", "2x"], "2x"),
        (["--memory", "8GB"], "Gi"),
        (["--device", "nvidia.com/gpu=1"], "use --gpus"),
        (["--device", "rdma=1"], "VENDOR/RESOURCE=N"),
        (["--toleration", "a=b:Never"], "NoSchedule"),
        (["--running-timeout", "soon"], "1h30m"),
        (["--name", "Digits"], "digits"),
        (["--name", "d" * 63], "too long"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_wrong_flag_is_named_with_the_remedy(
    flags: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["submit", "pytorch", "--name", "x", "--image", "i", *flags, "--dry-run", "true"]
    assert main.run(arguments) == ExitCode.USAGE
    assert fragment in capsys.readouterr().err


def test_a_file_may_hold_several_objects_and_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    path = tmp_path / "jobs.yaml"
    listed = {"apiVersion": "v1", "kind": "List", "items": [claim, JOB]}
    path.write_text("---\n" + yaml.safe_dump(JOB) + "---\n---\n" + json.dumps(listed))
    assert main.run(["submit", "-f", str(path), "--dry-run"]) == ExitCode.DONE
    shown = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in shown] == ["PyTorchJob", "ConfigMap", "PyTorchJob"]


def test_objects_are_read_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(JOB)))
    assert main.run(["submit", "-f", "-", "--dry-run", "-o", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == JOB


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "has no object"),
        ("a: b: c", "line 1"),
        ("just text", "not a str"),
        ("- 1", "not a list"),
        ("kind: PyTorchJob", "no apiVersion"),
        ("apiVersion: v1", "no kind"),
        ("apiVersion: v1\nkind: Pod", "no metadata"),
        ("apiVersion: kubeflow.org/v1\nkind: PytorchJob\nmetadata: {name: x}", "PyTorchJob?"),
        ("apiVersion: kubeflow.org/v2\nkind: PyTorchJob\nmetadata: {name: x}", "kubeflow.org/v1"),
        ("\x00\x01", "not valid YAML"),
    ],
    ids=[
        "empty", "broken", "text", "list", "no version", "no kind", "no metadata",
        "misspelt kind", "wrong version", "binary",
    ],
)  # fmt: skip
def test_file_without_a_job_is_refused_with_its_location(
    text: str, fragment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert main.run(["submit", "-f", str(path)]) == ExitCode.USAGE
    assert fragment in capsys.readouterr().err


def test_missing_file_and_folder_have_distinct_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["submit", "-f", str(tmp_path / "none")]) == ExitCode.USAGE
    assert "no file" in capsys.readouterr().err
    assert main.run(["submit", "-f", str(tmp_path)]) == ExitCode.USAGE
    assert "Is a directory" in capsys.readouterr().err


def test_all_mistakes_of_a_job_are_named_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job: dict[str, Any] = json.loads(json.dumps(JOB))
    job["metadata"]["name"] = "Digits"
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = -1
    job["spec"]["runPolicy"] = {"cleanPodPolicy": "Some"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    assert main.run(["submit", "-f", str(path)]) == ExitCode.USAGE
    result = capsys.readouterr().err
    assert all(part in result for part in ("metadata.name", "replicas", "cleanPodPolicy"))


def test_submit_without_arguments_names_the_missing_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["submit"]) == ExitCode.USAGE
    assert "-f" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d1s", 86_401)),
        *(("1.5h", 5400), ("300ms", 1), ("1h0.5m", 3630)),
    ],
)
def test_durations_are_read(text: str, expected: int) -> None:
    assert parsers.parse_seconds("--since", text) == expected


@pytest.mark.parametrize("text", ["x", "-5m", "1y", "nan", "1.5", "½", "1h 5m"])
def test_what_is_no_duration_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write a duration such as 90s"):
        parsers.parse_seconds("--since", text)


@pytest.mark.parametrize("text", ["x", "2026-13-31", "12:00"])
def test_what_is_no_time_is_refused_with_its_flag(text: str) -> None:
    assert parsers.check_time("--since-time", "2026-01-31T12:00:00Z")
    with pytest.raises(click.BadParameter, match="write a time such as") as raised:
        parsers.check_time("--since-time", text)
    assert raised.value.param_hint == "--since-time"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", {"operator": "Exists"}),
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu=a:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "a"}),
        ("gpu=a:NoExecute,Exists", {"key": "gpu", "operator": "Exists"}),
    ],
)
def test_tolerations_are_read(text: str, expected: dict[str, str]) -> None:
    assert parsers.parse_tolerations([text])[0].items() >= expected.items()


def test_an_option_behind_a_quoted_command_is_not_swallowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["submit", "pytorch", "--name", "digits", "--image", "torch:2", "python x.py"]
    assert main.run([*arguments, "--wait"]) == ExitCode.USAGE
    assert "--wait is behind the command" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["elastic", "pytorch"])
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("gangline run --nnodes 4:2 x.py", "--nnodes 4:2: at least one node, and no more than"),
        ("torchrun --nnodes=two x.py", "--nnodes two: must be a number or MIN:MAX"),
        ("dlrover-run --nnodes='2:x' x.py", "--nnodes 2:x: must be a number or MIN:MAX"),
        ("torchrun --nnodes 2:$NODE_NUM x.py", ""),
        ("torchrun --nnodes=1:2 x.py", ""),
        ("python x.py --nnodes all", ""),
    ],
)
def test_a_number_of_nodes_that_the_launcher_refuses_is_refused_before(
    capsys: pytest.CaptureFixture[str], kind: str, command: str, problem: str
) -> None:
    arguments = ["submit", kind, "--name", "digits", "--image", "i", "--workers", "2", "--dry-run"]
    code = main.run([*arguments, command])
    assert code == (ExitCode.USAGE if problem else ExitCode.DONE)
    assert problem in capsys.readouterr().err
