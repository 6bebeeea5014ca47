"""Jobs that a list decodes are the same as those that are decoded completely, for every kind."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from gangline.sdk.jobs import Job, JobState, build_job
from gangline.sdk.kinds import JOB_KINDS, JobKind, listed_resource

CREATED, STARTED = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
TEMPLATE = {
    "metadata": {"creationTimestamp": None},
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": 1}, "requests": None},
            },
            {"name": "side", "resources": {"requests": {"nvidia.com/gpu": 1}}},
            {"name": "plain"},
        ]
    },
}
REPORT = {
    "progressPercentage": 45,
    "estimatedRemainingSeconds": 130,
    "metrics": [{"name": "loss", "value": "0.12"}],
    "lastUpdatedTime": STARTED,
}


def stored(kind: JobKind, **status: Any) -> bytes:
    """A job with two of the roles of its kind, as the server stores it."""
    roles = {
        role: {"replicas": count, "template": TEMPLATE}
        for count, role in enumerate(kind.roles[:2], start=1)
    }
    scheduling = {"schedulingPolicy": {"queue": "q", "priorityClass": "high", "minAvailable": 2}}
    spec: dict[str, Any] = {
        "runPolicy": {"backoffLimit": 1, "managedBy": "kueue.x-k8s.io/multikueue"}
    }
    if kind.has_runtime:
        spec = {"runtimeRef": {"name": "r"}, "managedBy": "kueue.x-k8s.io/multikueue"}
        status = {"gangline": status | {"roles": roles}}
    elif kind.replica_specs_field:
        first, *rest = kind.replica_specs_field.split("_")
        spec["runPolicy"] |= scheduling
        spec[first + "".join(map(str.capitalize, rest))] = roles
    else:
        spec |= roles | scheduling
    status["trainerStatus"] = REPORT
    metadata = {"name": "x", "namespace": "d", "uid": "u", "creationTimestamp": CREATED}
    metadata |= {"labels": {"a": "b"}, "managedFields": [{"manager": "kubectl", "fieldsV1": {}}]}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status})


def read_completely(kind: JobKind, raw: bytes) -> Job:
    return build_job(kind, msgspec.json.decode(raw, type=kind.resource.type), [], [])


def read_listed(kind: JobKind, raw: bytes) -> Job:
    listed: Any = msgspec.json.decode(raw, type=listed_resource(kind).type)
    if kind.has_runtime:
        listed = msgspec.json.decode(listed, type=kind.resource.type)
    return build_job(kind, listed, [], [])


@pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.trainer)
def test_listed_job_equals_complete_job(kind: JobKind) -> None:
    ended = {"type": "Failed", "status": "True", "reason": "R", "message": "m"}
    ended |= {"lastTransitionTime": "2026-01-01T00:02:00Z"}
    restarts = {"total": 3, "pods": {"u": 1}}
    raw = stored(kind, conditions=[ended], startTime=STARTED, restarts=restarts)
    listed = read_listed(kind, raw)
    assert listed == read_completely(kind, raw)
    assert listed.restarts == 3
    assert listed.progress is not None
    assert listed.progress.summary == "45%", "a job that has ended has no time left"
    live = read_listed(kind, stored(kind)).progress
    assert live is not None
    assert live.summary == "45%, 2:10 left"
    pods = sum(range(1, 1 + len(kind.roles[:2])))
    assert (listed.state, listed.reason, listed.desired) == (JobState.FAILED, "m", pods)
    assert (listed.requested_gpus, listed.managed_elsewhere) == (3 * pods, True)
    assert listed.finished
    assert (listed.queue, listed.priority) == (("", "") if kind.has_runtime else ("q", "high"))


@pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.trainer)
def test_job_without_any_field_is_listed(kind: JobKind) -> None:
    listed = read_listed(kind, b'{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"}}')
    assert (listed.state, listed.desired) == (JobState.PENDING, 0)


def test_a_list_builds_no_type_of_a_kind_or_of_a_pod() -> None:
    script = (
        "import sys, gangline.sdk.client as client;"
        "decoded = [client.listed_resource(kind).type for kind in client.JOB_KINDS];"
        "print(*(name for name in sorted(sys.modules) if name.startswith(("
        "'gangline.api.jobs.', 'gangline.api.core.', 'gangline.api.volcano.', 'yaml',"
        "'gangline.api.symptoms', 'tempfile'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["gangline.api.jobs.kind"]
