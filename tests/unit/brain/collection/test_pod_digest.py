"""Pods as runs of their ranks."""

from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.brain.collection.job_digest import DELETED, digest_pod, end_of_deleted, merge_runs

START, END, AGAIN = "2026-11-20T10:00:00Z", "2026-11-20T10:05:00Z", "2026-11-20T10:05:10Z"
START_MS = 1_795_168_800_000


def pod(labels: dict[str, str] | None = None, **status: Any) -> Pod:
    given = {
        "training.kubeflow.org/replica-type": "Worker",
        "training.kubeflow.org/replica-index": "3",
    }
    limits = {"limits": {"memory": "2Gi"}}
    return msgspec.convert(
        {
            "metadata": {"name": "train-worker-3", "uid": "u", "labels": labels or given},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": limits}]},
            "status": status,
        },
        Pod,
    )


def container(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "main", "state": state, "lastState": last or {}}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    return {
        "terminated": {"exitCode": code, "reason": reason, "startedAt": START, "finishedAt": END}
    }


def test_running_container_is_a_run_without_end() -> None:
    (run,) = digest_pod(pod(containerStatuses=[container({"running": {"startedAt": START}})]))
    assert (run.role, run.rank, run.node) == ("worker", 3, "n1")
    assert run.started_ms == START_MS
    assert run.ended_ms is None
    assert run.limit_memory_bytes == 2 << 30


def test_restart_in_place_shows_two_runs_and_the_first_ran_out_of_memory() -> None:
    status = container({"running": {"startedAt": AGAIN}}, ended(137, "OOMKilled"))
    first, second = digest_pod(pod(containerStatuses=[status]))
    assert (first.oom, first.cause, first.ended_ms) == (True, "OutOfMemory", START_MS + 300_000)
    assert (second.oom, second.ended_ms) == (False, None)


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: NPU out of memory. Tried to allocate 64.00 MiB (NPU 0; 60.97 GiB)",
        "train.py FAILED on n1: DeviceOutOfMemory\n  torch.OutOfMemoryError: HIP out of memory.",
    ],
)
def test_lack_of_device_memory_is_not_lack_of_the_containers(message: str) -> None:
    end = ended(1, "Error")
    end["terminated"]["message"] = message
    (run,) = digest_pod(pod(phase="Failed", containerStatuses=[container(end)]))
    assert (run.cause, run.oom) == ("DeviceOutOfMemory", False)
    killed = ended(137, "OOMKilled")
    killed["terminated"]["message"] = message
    (run,) = digest_pod(pod(phase="Failed", containerStatuses=[container(killed)]))
    assert (run.cause, run.oom) == ("OutOfMemory", True)


def test_eviction_takes_precedence_over_the_exit_code() -> None:
    evicted = pod(
        phase="Failed", reason="Evicted", containerStatuses=[container(ended(137, "Error"))]
    )
    (run,) = digest_pod(evicted)
    assert (run.cause, run.oom) == ("Evicted", False)


def test_waiting_pods_and_pods_of_nobody_have_no_runs() -> None:
    assert digest_pod(pod(containerStatuses=[container({"waiting": {"reason": "Pulling"}})])) == []
    running = [container({"running": {"startedAt": START}})]
    assert digest_pod(pod({"app": "other"}, containerStatuses=running)) == []
    odd = {
        "training.kubeflow.org/replica-type": "Worker",
        "training.kubeflow.org/replica-index": "x",
    }
    assert digest_pod(pod(odd, containerStatuses=running)) == []


def test_rank_of_an_elastic_pod_is_not_its_number() -> None:
    labels = {
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "7",
        "elasticjob.dlrover/rank-index": "2",
    }
    running = [container({"running": {"startedAt": START}})]
    (run,) = digest_pod(pod(labels, containerStatuses=running))
    assert run.rank == 2


def test_deletion_ends_a_run_only_if_nothing_better_is_known() -> None:
    (running,) = digest_pod(pod(containerStatuses=[container({"running": {"startedAt": START}})]))
    (failed,) = digest_pod(pod(containerStatuses=[container(ended(1))]))
    gone = end_of_deleted(running, START_MS + 400_000)
    assert (gone.cause, gone.ended_ms) == (DELETED, START_MS + 400_000)
    for joined in (merge_runs(gone, failed), merge_runs(failed, gone)):
        assert (joined.cause, joined.ended_ms) == ("Error", START_MS + 300_000)
    assert end_of_deleted(failed, START_MS + 400_000) == failed
