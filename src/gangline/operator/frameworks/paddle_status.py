"""Status fields of PaddleJobs beside the common ones: upstream's phase, mode and counts.

Upstream computes the phase from its last value and from roles in random order, and writes the
status in every pass. Here the phase is a function of the observed replicas and is written when it
changes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from gangline.api.kubeflow import JobStatus, ReplicaStatus
from gangline.api.paddle import PaddleJobSpec
from gangline.operator import conditions
from gangline.operator.job import CleanPodPolicy, Manifest, TrainingJob
from gangline.operator.replicas import Gang, Phase, Pod
from gangline.operator.stored import StoredJob

BARRIER = "coord-paddle"
"""The init container in which pods wait for each other's names."""

_NO_CONFIG_MAP = "CreateContainerConfigError"

PENDING, STARTING, RUNNING, RESTARTING = "Pending", "Starting", "Running", "Restarting"
COMPLETED, FAILED = "Completed", "Failed"

_MOST_REFS = 1000
"""A role with more pods lists none of them, because the object would become too large."""

_ENDS = {COMPLETED: conditions.SUCCEEDED, FAILED: conditions.FAILED}


class _Upstream(JobStatus):
    """A status that upstream's operator may have written."""

    phase: str = ""


_DECODER = msgspec.json.Decoder(_Upstream)
_COMMON = tuple(field.name for field in msgspec.structs.fields(JobStatus))


def read(stored: StoredJob) -> JobStatus:
    """Decode a stored status; a job that upstream finished without a condition counts as finished.

    Raises:
        msgspec.DecodeError: the status cannot be decoded.
    """
    found = _DECODER.decode(stored.status)
    status = JobStatus(**{name: getattr(found, name) for name in _COMMON})
    end = _ENDS.get(found.phase)
    if end is None or conditions.is_finished(status.conditions):
        return status
    when = found.completion_time or stored.metadata.creation_timestamp or found.start_time
    if when is None:
        return status
    message = f"{stored.kind or 'PaddleJob'} {stored.metadata.name} was {found.phase} already."
    updated = conditions.assert_true(status.conditions, end, f"PaddleJob{end}", message, when)
    return msgspec.structs.replace(status, conditions=updated, completion_time=when)


def fields(job: TrainingJob, spec: PaddleJobSpec, gang: Gang, status: JobStatus) -> Manifest:
    """Return upstream's fields."""
    result: Manifest = {"phase": _phase(job, gang, status), "mode": mode(spec)}
    finished = conditions.is_finished(status.conditions)
    for role in job.roles:
        pods = gang[role.name].present
        counted = status.replica_statuses.get(role.name)
        counts = _at_the_end(counted) if finished and counted else _counts(pods)
        listed = _refs(_staying(job, status, pods) if finished else pods)
        if counts or listed:
            result[role.name] = {**counts, **({"refs": listed} if listed else {})}
    if job.meta.generation:
        result["observedGeneration"] = job.meta.generation
    return result


def mode(spec: PaddleJobSpec) -> str:
    """Return the training mode: with servers, with several workers, or with one."""
    if spec.ps and spec.ps.count:
        return "PS"
    return "Collective" if spec.worker and spec.worker.count > 1 else "Single"


def runs(gang: Gang) -> bool:
    """Return whether every replica is running or completed, and at least one is running."""
    stages = _stages(gang)
    return stages[RUNNING] > 0 and stages.total() == stages[RUNNING] + stages[COMPLETED]


def _phase(job: TrainingJob, gang: Gang, status: JobStatus) -> str:
    for phase, condition in _ENDS.items():
        if conditions.holds(status.conditions, condition):
            return phase
    if conditions.holds(status.conditions, conditions.SUSPENDED):
        return PENDING
    if conditions.holds(status.conditions, conditions.RESTARTING):
        return RESTARTING
    if runs(gang):
        return RUNNING
    stages = _stages(gang)
    return STARTING if stages[STARTING] else PENDING


def _stages(gang: Gang) -> Counter[str]:
    """Count all replicas by stage, including those without a pod."""
    stages: Counter[str] = Counter()
    for slots in gang.roles.values():
        for index, pod in enumerate(slots.pods):
            done = index in slots.completed
            stages[COMPLETED if done else _stage(pod) if pod else PENDING] += 1
    return stages


def _stage(pod: Pod) -> str:
    if pod.terminating:
        return PENDING
    match pod.status.phase:
        case Phase.RUNNING:
            at_work = all(
                container.ready or container.state.terminated
                for container in pod.status.container_statuses
            )
            return RUNNING if at_work else STARTING
        case Phase.SUCCEEDED:
            return COMPLETED
        case Phase.FAILED:
            return FAILED
        case Phase.UNKNOWN:
            return "Unknown"
    return STARTING if _waits_for_peers(pod) else PENDING


def _waits_for_peers(pod: Pod) -> bool:
    """Return whether a pod waits for its peers' names or for the data of the ConfigMap."""
    return any(
        status.name == BARRIER and not status.state.waiting and not status.state.terminated
        for status in pod.status.init_container_statuses
    ) or any(
        status.state.waiting and status.state.waiting.reason == _NO_CONFIG_MAP
        for status in pod.status.container_statuses
    )


_FIELDS = {
    PENDING: "pending",
    STARTING: "starting",
    RUNNING: "running",
    FAILED: "failed",
    COMPLETED: "succeeded",
    "Unknown": "unknown",
}


def _counts(pods: Iterable[Pod]) -> Manifest:
    stages = Counter(_stage(pod) for pod in pods)
    return {field: stages[stage] for stage, field in _FIELDS.items() if stages[stage]}


def _at_the_end(counted: ReplicaStatus) -> Manifest:
    """Return the counts at the end of the job, which stay when its pods are deleted."""
    found: Mapping[str, int] = {
        "running": counted.active,
        "failed": counted.failed,
        "succeeded": counted.succeeded,
    }
    return {field: count for field, count in found.items() if count}


def _staying(job: TrainingJob, status: JobStatus, pods: list[Pod]) -> list[Pod]:
    """Return the pods of a finished job that its clean pod policy retains."""
    failed = conditions.holds(status.conditions, conditions.FAILED)
    match job.policy.clean_after(failure=failed):
        case CleanPodPolicy.NONE:
            return pods
        case CleanPodPolicy.RUNNING:
            return [pod for pod in pods if pod.over]
        case CleanPodPolicy.ALL:
            return []


def _refs(pods: list[Pod]) -> list[Manifest]:
    if len(pods) > _MOST_REFS:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.metadata.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        for pod in pods
    ]
