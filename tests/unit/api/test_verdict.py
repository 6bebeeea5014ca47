"""The verdict about a failed pod is the same for the operator, lists and the diagnosis."""

from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.verdict import MAX_EVIDENCE_LENGTH, finding_of_pod, root_finding
from gangline.operator.model.replicas import ObservedPod, strip_pod
from gangline.operator.policies.restart import by_cause, describe_pod_failure, failure_of
from gangline.sdk.jobs import read_replica
from gangline.sdk.lean_pods import ListedPod

MISSING_SCRIPT = "python: can't open file '/train.py': [Errno 2] No such file or directory"
PEER_LOST = "RuntimeError: Connection closed by peer [10.0.0.7]:29500"

HANG = (
    "train.py FAILED on n1: Hang\n  Hang: No worker has made progress for 6 s. "
    "Message: rank 1 on w-1 is at train.py:6; waiting for it: rank 0\n"
    "  not restarted: all 1 restarts are used up"
)


def written(
    code: int = 1, message: str = "", reason: str = "Error", index: int = 0, at: int = 0
) -> dict[str, Any]:
    """A failed pod as the API server stores it."""
    end = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "finishedAt": f"2026-01-02T12:00:{at:02}Z",
    }
    role = {"training.kubeflow.org/replica-type": "worker"}
    return {
        "metadata": {
            "name": f"train-worker-{index}",
            "labels": role | {"training.kubeflow.org/replica-index": str(index)},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "pytorch"}]},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "pytorch", "state": {"terminated": end}}],
        },
    }


def disrupted(reason: str) -> dict[str, Any]:
    pod = written(137)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, condition]
    return pod


def observed(pod: dict[str, Any]) -> ObservedPod:
    return strip_pod(msgspec.convert(pod, ObservedPod, strict=False))


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (written(2, MISSING_SCRIPT), "FileMissing"),
        (written(2), "UsageError"),
        (written(1, f"Traceback\n{PEER_LOST}"), "PeerLost"),
        (written(128, "fatal: repository 'https://h/c.git/' not found"), "GitRepositoryMissing"),
        (written(128), "Error"),
        (written(128, reason="StartError"), "CannotStart"),
        (written(128, reason="ContainerCannotRun"), "CannotStart"),
        (written(137), "Killed"),
        (written(137, reason="OOMKilled"), "OutOfMemory"),
        (written(137, reason="ContainerStatusUnknown"), "NodeLost"),
        (written(255, reason="Unknown"), "NodeLost"),
        (disrupted("PreemptionByScheduler"), "Preempted"),
        (written(134, HANG), "Hang"),
        (written(203, HANG.replace("Hang", "DeviceBroken")), "DeviceBroken"),
        (written(137, HANG, reason="OOMKilled"), "OutOfMemory"),
        (written(1, HANG.replace("Hang", "Invented")), "Error"),
    ],
)
def test_cause_is_the_same_everywhere(pod: dict[str, Any], cause: str) -> None:
    complete = msgspec.convert(pod, Pod, strict=False)
    finding = finding_of_pod(complete)
    assert finding is not None
    assert finding.cause == cause
    seen = observed(pod)
    in_operator = failure_of(seen, "pytorch")
    assert in_operator is not None
    assert in_operator.cause == cause
    assert describe_pod_failure(seen, "pytorch").startswith(f"train-worker-0: {cause}")
    listed = msgspec.convert(pod, ListedPod, strict=False)
    assert read_replica(listed, "worker").message == str(finding)
    assert read_replica(complete, "worker").message == str(finding)


def test_report_of_an_agent_gives_meaning_evidence_and_remedy() -> None:
    finding = finding_of_pod(msgspec.convert(written(134, HANG), Pod, strict=False))
    assert finding is not None
    assert finding.evidence == "rank 1 on w-1 is at train.py:6; waiting for it: rank 0"
    assert "--hang-timeout" in finding.remedy
    fault = "SegmentationFault (exit code 139): It touched memory."
    report = "x.py FAILED on n1: SegmentationFault\n  first to fail: rank 5 (local rank 1, pid 7): "
    by_signal = written(139, f"{report}{fault}\n  not restarted: all 3 restarts are used up")
    finding = finding_of_pod(msgspec.convert(by_signal, Pod, strict=False))
    assert finding is not None
    assert finding.evidence == "rank 5 failed first"


def test_node_that_restarted_does_not_suggest_more_memory() -> None:
    pod = written(137, reason="ContainerStatusUnknown")
    finding = finding_of_pod(msgspec.convert(pod, Pod, strict=False))
    assert finding is not None
    assert "memory" not in f"{finding} {finding.remedy}".lower()


def test_message_precedes_the_log_and_its_last_line_is_the_evidence() -> None:
    complete = msgspec.convert(written(1, "first\nthe last line\n\n"), Pod, strict=False)
    finding = finding_of_pod(complete)
    assert finding is not None
    assert finding.evidence == "the last line"
    by_log = finding_of_pod(complete, MISSING_SCRIPT)
    assert by_log is not None
    assert by_log.cause == "FileMissing"
    long = finding_of_pod(msgspec.convert(written(1, "x" * 9999), Pod, strict=False))
    assert long is not None
    assert len(long.evidence) == MAX_EVIDENCE_LENGTH + 1


def test_replica_that_failed_by_itself_leads_although_it_failed_later() -> None:
    pods = [written(1, PEER_LOST, index=0, at=1), written(1, "ValueError: x", index=1, at=5)]
    findings = [finding_of_pod(msgspec.convert(pod, Pod, strict=False)) for pod in pods]
    root = root_finding(filter(None, findings))
    assert root is not None
    assert root.replica == "worker-1"
    assert [pod.name for pod in by_cause(map(observed, pods), "pytorch")] == [
        "train-worker-1",
        "train-worker-0",
    ]


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_out_of_memory_names_the_limit_of_the_container(group: str) -> None:
    pod = written(137, reason="OOMKilled")
    status = pod["status"].pop("containerStatuses")[0]
    pod["status"]["containerStatuses" if group == "containers" else "initContainerStatuses"] = [
        status
    ]
    limit = {"resources": {"limits": {"memory": "2Gi"}}}
    other = {"name": "sidecar", "resources": {"limits": {"memory": "1Gi"}}}
    pod["spec"] |= {"containers": [other], group: [other, {"name": "pytorch", **limit}]}
    finding = finding_of_pod(msgspec.convert(pod, Pod))
    assert finding is not None
    assert "exceeded its limit of 2Gi" in finding.meaning


@pytest.mark.parametrize(
    ("trained", "others", "title"),
    [
        pytest.param(None, {"prep": 4}, "Error in init container prep (exit code 4)", id="init"),
        pytest.param(0, {"log": 1}, "Error in container log (exit code 1)", id="beside it"),
        pytest.param(3, {"log": 1}, "Error (exit code 3)", id="it failed as well"),
    ],
)
def test_a_container_that_does_not_train_is_named(
    trained: int | None, others: dict[str, int], title: str
) -> None:
    def status(name: str, code: int | None) -> dict[str, Any]:
        waits, ended = (
            {"waiting": {"reason": "PodInitializing"}},
            {"terminated": {"exitCode": code}},
        )
        return {"name": name, "state": waits if code is None else ended}

    pod = written(0)
    listed = [status(name, code) for name, code in others.items()]
    before = trained is None
    pod["status"] |= {
        "phase": "Failed",
        "containerStatuses": [*([] if before else listed), status("pytorch", trained)],
        "initContainerStatuses": listed if before else [],
    }
    for main in ("pytorch", ""):
        finding = finding_of_pod(msgspec.convert(pod, Pod), container=main)
        assert finding is not None
        assert finding.title == title
