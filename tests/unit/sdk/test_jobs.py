"""The model of a job, from its stored objects."""

from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.jobs.spec_record import pack_spec
from gangline.api.volcano.scheduling import PodGroup
from gangline.sdk.jobs import Job, JobState, build_job, pod_status_text
from gangline.sdk.kinds import JOB_KINDS, ListedJob
from gangline.sdk.lean_pods import ListedPod

KIND = JOB_KINDS[0]
CREATED = "2026-01-01T00:00:00Z"


def a_job(*conditions: tuple[str, str], gpus: int = 0, workers: int = 2) -> PyTorchJob:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    template = {"spec": {"containers": [{"name": "pytorch", "resources": resources}]}}
    replicas = {
        "Master": {"template": template},
        "Worker": {"replicas": workers, "template": template},
    }
    raw = {
        "metadata": {"name": "x", "namespace": "d", "uid": "u", "creationTimestamp": CREATED},
        "spec": {"pytorchReplicaSpecs": replicas},
        "status": {
            "conditions": [
                {"type": type_, "status": status, "message": f"{type_} it is"}
                for type_, status in conditions
            ]
        },
    }
    return msgspec.convert(raw, PyTorchJob)


def a_pod(role: str = "worker", index: int = 0, **fields: Any) -> Pod:
    labels = {
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    metadata = {"name": f"x-{role}-{index}", "labels": labels} | fields.pop("metadata", {})
    return msgspec.convert({"metadata": metadata, **fields}, Pod)


def a_group(status: str, message: str = "2 cpu short") -> PodGroup:
    condition = {"type": "Unschedulable", "status": status, "message": message}
    return msgspec.convert({"status": {"conditions": [condition]}}, PodGroup)


def read(job: PyTorchJob, *pods: Pod, groups: tuple[PodGroup, ...] = ()) -> Job:
    found = build_job(KIND, job, pods, groups)
    listed = msgspec.json.decode(msgspec.json.encode(pods), type=list[ListedPod])
    assert build_job(KIND, job, listed, groups) == found
    assert [pod_status_text(pod) for pod in listed] == [pod_status_text(pod) for pod in pods]
    return found


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ((), JobState.PENDING),
        ((("Created", "True"),), JobState.PENDING),
        ((("Running", "True"),), JobState.RUNNING),
        ((("Running", "False"), ("Restarting", "True")), JobState.RESTARTING),
        ((("Running", "False"), ("Succeeded", "True")), JobState.SUCCEEDED),
        ((("Running", "False"), ("Failed", "True")), JobState.FAILED),
        ((("Suspended", "True"),), JobState.SUSPENDED),
    ],
)
def test_the_state_is_that_of_the_conditions(
    conditions: tuple[tuple[str, str], ...], state: JobState
) -> None:
    assert read(a_job(*conditions)).state is state


def test_pending_gang_is_queuing_with_a_reason() -> None:
    job = read(a_job(), a_pod(), groups=(a_group("True"),))
    assert (job.state, job.reason) == (JobState.QUEUING, "2 cpu short")
    assert read(a_job(), a_pod(), groups=(a_group("False"),)).state is JobState.PENDING


def test_job_is_queuing_if_its_pods_alone_say_that_they_wait() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x"}
    pending = a_pod(status={"conditions": [waiting]})
    assert read(a_job(), pending).state is JobState.QUEUING
    placed = a_pod(index=1, spec={"nodeName": "n", "containers": []})
    assert read(a_job(), pending, placed).state is JobState.PENDING


@pytest.mark.parametrize("condition", ["Failed", "InvalidSpec"])
def test_failed_or_invalid_job_has_a_reason(condition: str) -> None:
    assert read(a_job((condition, "True"))).reason == f"{condition} it is"


def test_invalid_job_has_the_replicas_of_the_specification_by_which_it_runs() -> None:
    raw = msgspec.to_builtins(a_job(("InvalidSpec", "True"), workers=9000))
    valid = msgspec.to_builtins(a_job(workers=3))["spec"]
    record = pack_spec(msgspec.json.encode(valid))
    raw["status"]["lastValidSpec"] = {"generation": 1, "spec": record}
    assert read(msgspec.convert(raw, PyTorchJob)).desired == 4
    listed = msgspec.convert(raw, ListedJob)
    assert build_job(KIND, listed, [], []).desired == 4


def test_reason_says_why_pods_of_a_job_that_ran_are_missing() -> None:
    raw = msgspec.to_builtins(a_job(("Running", "False")))
    raw["status"]["conditions"][0]["reason"] = "PyTorchJobPreempted"
    preempted = read(msgspec.convert(raw, PyTorchJob), a_pod(), groups=(a_group("True"),))
    assert (preempted.state, preempted.reason) == (JobState.QUEUING, "Running it is")
    restarting = read(a_job(("Restarting", "True")), a_pod(), groups=(a_group("True"),))
    assert restarting.reason == "Restarting it is Pending: 2 cpu short"


def test_a_container_that_does_not_start_is_the_reason() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod = a_pod(status={"containerStatuses": [{"name": "c", "state": waiting}]})
    assert read(a_job(), pod).reason == "worker-0: ImagePullBackOff no such image"


def test_a_pod_of_an_unknown_scheduler_says_that_none_has_looked_at_it() -> None:
    spec = {"containers": [{"name": "c"}], "schedulerName": "mine"}
    job = read(a_job(), a_pod(spec=spec, status={"phase": "Pending"}))
    assert job.reason.startswith("worker-0: no scheduler of the name 'mine' has looked at it")
    assert "gangline, volcano and default-scheduler" in job.reason
    condition = {"type": "PodScheduled", "status": "True"}
    looked_at = {"phase": "Pending", "conditions": [condition]}
    assert not read(a_job(), a_pod(spec=spec, status=looked_at)).reason
    assert not read(a_job(), a_pod(spec=spec | {"schedulerName": "volcano"})).reason


def test_a_job_that_succeeded_has_nothing_to_explain() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    pod = a_pod(status={"containerStatuses": [{"name": "c", "state": waiting}]})
    assert not read(a_job(("Succeeded", "True")), pod).reason


def test_the_leader_comes_first_and_workers_by_number() -> None:
    job = read(a_job(), a_pod(index=10), a_pod(index=9), a_pod("master"))
    assert [each.short_name for each in job.replicas] == ["master-0", "worker-9", "worker-10"]
    assert job.chief is job.replicas[0]


def test_replicas_and_gpus_are_counted_from_the_spec() -> None:
    job = read(a_job(gpus=4, workers=3))
    assert (job.desired, job.requested_gpus) == (4, 16)


def test_gpus_count_as_allocated_while_their_pods_have_nodes() -> None:
    spec = {
        "nodeName": "n",
        "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "2"}}}],
    }
    pods = [a_pod(spec=spec), a_pod(index=1, spec=spec | {"nodeName": ""})]
    assert read(a_job(("Running", "True")), *pods).allocated_gpus == 2
    assert read(a_job(("Failed", "True")), *pods).allocated_gpus == 0


def ended(code: int, reason: str = "", signal: int = 0) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "signal": signal}}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Running"}}, "Running"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"metadata": {"deletionTimestamp": CREATED}}, "Terminating"),
        ({"status": {"containerStatuses": [{"state": ended(0, "Completed")}]}}, "Completed"),
        ({"status": {"containerStatuses": [{"state": ended(1, "Error")}]}}, "Error"),
        ({"status": {"containerStatuses": [{"state": ended(3)}]}}, "ExitCode:3"),
        ({"status": {"containerStatuses": [{"state": ended(137, signal=9)}]}}, "Signal:9"),
        (
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "Pulling"}}}]}},
            "Pulling",
        ),
        (
            {"status": {"initContainerStatuses": [{"state": ended(1, "Error")}]}},
            "Init:Error",
        ),
        (
            {
                "status": {
                    "phase": "Running",
                    "initContainerStatuses": [
                        {"state": ended(0)},
                        {"started": True, "state": {"running": {}}},
                    ],
                }
            },
            "Running",
        ),
    ],
)
def test_a_pod_is_called_what_kubectl_calls_it(fields: dict[str, Any], word: str) -> None:
    assert pod_status_text(a_pod(**fields)) == word


@pytest.mark.parametrize("statuses", ["containerStatuses", "initContainerStatuses"])
def test_the_exit_code_and_restarts_of_an_ended_replica_are_shown(statuses: str) -> None:
    pod = a_pod(status={statuses: [{"restartCount": 2, "state": ended(3, "Error")}]})
    replica = read(a_job(), pod).replicas[0]
    assert (replica.exit_code, replica.restarts) == (3, 2)
    assert replica.message.startswith("Error (exit code 3): The program failed")


@pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.identity)
def test_job_of_every_kind_is_read(kind: JobKind) -> None:
    job = msgspec.convert({"metadata": {"name": "x"}}, kind.resource.type)
    assert build_job(kind, job, [], []).queue == ""


def test_queue_of_a_paddle_job_is_read_from_its_spec() -> None:
    (kind,) = (kind for kind in JOB_KINDS if kind.identity == "PaddleJob")
    spec = {"schedulingPolicy": {"queue": "research", "priorityClass": "high"}}
    job = msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, kind.resource.type)
    found = build_job(kind, job, [], [])
    assert (found.queue, found.priority) == ("research", "high")
