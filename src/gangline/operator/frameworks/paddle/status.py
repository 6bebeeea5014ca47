"""Status fields of PaddleJobs beside the common ones: upstream's phase, mode and counts.

Upstream computes the phase from its last value and from roles in random order, and writes the
status in every pass. Here the phase is a function of the observed replicas and is written when it
changes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from gangline.api.jobs.kubeflow import JobStatus, ReplicaStatus
from gangline.api.jobs.paddle import PaddleJobSpec
from gangline.api.meta.conditions import is_condition_true
from gangline.operator.model import conditions
from gangline.operator.model.job import CleanPodPolicy, Manifest, NormalizedJob, RawJob
from gangline.operator.model.replicas import ObservedPod, PodPhase, ReplicaGang

BARRIER_CONTAINER = "coord-paddle"
"""The init container in which pods wait for each other's names."""

_NO_CONFIG_MAP = "CreateContainerConfigError"

PENDING, STARTING, RUNNING, RESTARTING = "Pending", "Starting", "Running", "Restarting"
COMPLETED, FAILED = "Completed", "Failed"

_MAX_REFS = 1000
"""A role with more pods lists none of them, because the object would become too large."""

_ENDS = {COMPLETED: conditions.SUCCEEDED, FAILED: conditions.FAILED}


class _Upstream(JobStatus):
    """A status that upstream's operator may have written."""

    phase: str = ""


_DECODER = msgspec.json.Decoder(_Upstream)
_COMMON = tuple(field.name for field in msgspec.structs.fields(JobStatus))


def decode_paddle_status(stored: RawJob) -> JobStatus:
    """Decode a stored status; a job that upstream finished without a condition is finished."""
    decoded = _DECODER.decode(stored.status)
    status = JobStatus(**{name: getattr(decoded, name) for name in _COMMON})
    end = _ENDS.get(decoded.phase)
    if end is None or conditions.is_finished(status.conditions):
        return status
    when = decoded.completion_time or stored.metadata.creation_timestamp or decoded.start_time
    if when is None:
        return status
    message = f"{stored.kind or 'PaddleJob'} {stored.metadata.name} was {decoded.phase} already."
    updated = conditions.set_condition_true(
        status.conditions, end, f"PaddleJob{end}", message, when
    )
    return msgspec.structs.replace(status, conditions=updated, completion_time=when)


def paddle_status_fields(
    job: NormalizedJob, spec: PaddleJobSpec, gang: ReplicaGang, status: JobStatus
) -> Manifest:
    result: Manifest = {"phase": _phase(job, gang, status), "mode": training_mode(spec)}
    finished = conditions.is_finished(status.conditions)
    for role in job.roles:
        pods = gang[role.name].present
        counted = status.replica_statuses.get(role.name)
        counts = _final_counts(counted) if finished and counted else _counts(pods)
        listed = _refs(_retained_pods(job, status, pods) if finished else pods)
        if counts or listed:
            result[role.name] = {**counts, **({"refs": listed} if listed else {})}
    if job.meta.generation:
        result["observedGeneration"] = job.meta.generation
    return result


def training_mode(spec: PaddleJobSpec) -> str:
    """Return the training mode: with servers, with several workers, or with one."""
    if spec.ps and spec.ps.count:
        return "PS"
    return "Collective" if spec.worker and spec.worker.count > 1 else "Single"


def all_running(gang: ReplicaGang) -> bool:
    """Return whether every replica is running or completed, and at least one is running."""
    stages = _stages(gang)
    return stages[RUNNING] > 0 and stages.total() == stages[RUNNING] + stages[COMPLETED]


def _phase(job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> str:
    for phase, condition in _ENDS.items():
        if is_condition_true(status.conditions, condition):
            return phase
    if is_condition_true(status.conditions, conditions.SUSPENDED):
        return PENDING
    if is_condition_true(status.conditions, conditions.RESTARTING):
        return RESTARTING
    if all_running(gang):
        return RUNNING
    stages = _stages(gang)
    return STARTING if stages[STARTING] else PENDING


def _stages(gang: ReplicaGang) -> Counter[str]:
    """Count all replicas by stage, including those without a pod."""
    stages: Counter[str] = Counter()
    for slots in gang.roles.values():
        for index, pod in enumerate(slots.pods):
            done = index in slots.completed
            stages[COMPLETED if done else _stage(pod) if pod else PENDING] += 1
    return stages


def _stage(pod: ObservedPod) -> str:
    if pod.is_terminating:
        return PENDING
    match pod.status.phase:
        case PodPhase.RUNNING:
            at_work = all(
                container.ready or container.state.terminated
                for container in pod.status.container_statuses
            )
            return RUNNING if at_work else STARTING
        case PodPhase.SUCCEEDED:
            return COMPLETED
        case PodPhase.FAILED:
            return FAILED
        case PodPhase.UNKNOWN:
            return "Unknown"
    return STARTING if _waits_for_peers(pod) else PENDING


def _waits_for_peers(pod: ObservedPod) -> bool:
    """Return whether a pod waits for its peers' names or for the data of the ConfigMap."""
    return any(
        status.name == BARRIER_CONTAINER
        and not status.state.waiting
        and not status.state.terminated
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


def _counts(pods: Iterable[ObservedPod]) -> Manifest:
    stages = Counter(_stage(pod) for pod in pods)
    return {field: stages[stage] for stage, field in _FIELDS.items() if stages[stage]}


def _final_counts(counted: ReplicaStatus) -> Manifest:
    """Return the counts at the end of the job, which stay when its pods are deleted."""
    counts: Mapping[str, int] = {
        "running": counted.active,
        "failed": counted.failed,
        "succeeded": counted.succeeded,
    }
    return {field: count for field, count in counts.items() if count}


def _retained_pods(
    job: NormalizedJob, status: JobStatus, pods: list[ObservedPod]
) -> list[ObservedPod]:
    """Return the pods of a finished job that its clean pod policy retains."""
    failed = is_condition_true(status.conditions, conditions.FAILED)
    match job.policy.clean_policy_after_end(failure=failed):
        case CleanPodPolicy.NONE:
            return pods
        case CleanPodPolicy.RUNNING:
            return [pod for pod in pods if pod.is_finished]
        case CleanPodPolicy.ALL:
            return []


def _refs(pods: list[ObservedPod]) -> list[Manifest]:
    if len(pods) > _MAX_REFS:
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
