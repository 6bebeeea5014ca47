"""Digestion of pods: the runs of their main container. Pure."""

from collections.abc import Iterator

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerState, ContainerStatus
from gangline.api.failure import DEVICE_OUT_OF_MEMORY, failure_of_exit, failure_of_pod
from gangline.api.job_resources import MAIN_CONTAINERS
from gangline.api.resource_list import CPU, MEMORY
from gangline.api.symptoms import find_symptom
from gangline.brain.collection.job_digest import to_ms
from gangline.brain.collection.role_sizes import parsed_amount

ROLE_LABEL = "training.kubeflow.org/replica-type"
INDEX_LABEL = "training.kubeflow.org/replica-index"
RANK_LABEL = "elasticjob.dlrover/rank-index"
"""On pods of ElasticJobs, whose replica index is the number of the pod."""
DELETED = "Deleted"
"""Cause of a run whose pod was deleted while it ran."""
_OOM_CAUSE = "OutOfMemory"
"""Of a container that the kernel killed. The memory of a device is not that of the container."""
_PROGRAM_FAILURES = frozenset(("Error", "Aborted"))


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the main container of one pod. ``(role, rank, started_ms)`` identifies it."""

    pod: str
    pod_uid: str
    role: str
    rank: int
    node: str
    started_ms: int
    ended_ms: int | None = None
    cause: str = ""
    oom: bool = False
    limit_memory_bytes: int | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return self.role, self.rank, self.started_ms


def digest_pod(pod: Pod) -> list[ContainerRun]:
    """Return the runs that the status of a pod shows: at most the current and the last one."""
    place = _role_and_rank(pod)
    status = _main_status(pod)
    if place is None or status is None:
        return []
    return [*_runs(pod, status, *place)]


def end_of_deleted(run: ContainerRun, at_ms: int) -> ContainerRun:
    """Return the run of a pod that was deleted: it ended then, unless it had ended before."""
    if run.ended_ms is not None:
        return run
    return msgspec.structs.replace(run, ended_ms=max(at_ms, run.started_ms), cause=DELETED)


def merge_runs(first: ContainerRun, second: ContainerRun) -> ContainerRun:
    """Join two observations of one run; their order has no effect."""
    ended = [each for each in (first, second) if each.ended_ms is not None]
    # A status with a cause knows more than a deletion that was observed without one.
    ended.sort(key=lambda run: (run.cause != DELETED, run.ended_ms or 0, run.cause, run.oom))
    better = ended[-1] if ended else max(first, second, key=lambda run: run.node)
    limits = [x for x in (first.limit_memory_bytes, second.limit_memory_bytes) if x is not None]
    return msgspec.structs.replace(
        better,
        node=max(first.node, second.node),
        pod=max(first.pod, second.pod),
        pod_uid=max(first.pod_uid, second.pod_uid),
        oom=first.oom or second.oom,
        limit_memory_bytes=max(limits, default=None),
    )


def _role_and_rank(pod: Pod) -> tuple[str, int] | None:
    labels = pod.metadata.labels
    role = labels.get(ROLE_LABEL, "").lower()
    rank = labels.get(RANK_LABEL) or labels.get(INDEX_LABEL, "")
    if not role or not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
        return None
    return role, int(rank)


def _main_status(pod: Pod) -> ContainerStatus | None:
    statuses = pod.status.container_statuses
    named = (each for each in statuses if each.name in MAIN_CONTAINERS)
    return next(named, statuses[0] if statuses else None)


def _runs(pod: Pod, status: ContainerStatus, role: str, rank: int) -> Iterator[ContainerRun]:
    limit = _memory_limit(pod, status.name)
    for state, is_current in ((status.last_state, False), (status.state, True)):
        started = _started_ms(state)
        if started is None:
            continue
        cause, oom = _cause(pod, status, state, is_current=is_current)
        ended = state.terminated.finished_at if state.terminated else None
        yield ContainerRun(
            pod=pod.metadata.name,
            pod_uid=pod.metadata.uid,
            role=role,
            rank=rank,
            node=pod.spec.node_name,
            started_ms=started,
            ended_ms=to_ms(ended),
            cause=cause,
            oom=oom,
            limit_memory_bytes=limit,
        )


def _started_ms(state: ContainerState) -> int | None:
    if state.running:
        return to_ms(state.running.started_at)
    return to_ms(state.terminated.started_at) if state.terminated else None


def _cause(
    pod: Pod, status: ContainerStatus, state: ContainerState, *, is_current: bool
) -> tuple[str, bool]:
    if state.terminated is None:
        return "", False
    end = state.terminated
    code = end.exit_code or (128 + end.signal if end.signal else 0)
    failure = failure_of_exit(code, end.reason, end.message)
    if is_current and pod.status.phase == "Failed":
        failure = failure_of_pod(pod, status.name) or failure
    cause = failure.cause if failure else ""
    if cause in _PROGRAM_FAILURES and _ran_out_of_device_memory(end.message):
        return DEVICE_OUT_OF_MEMORY, False
    return cause, cause == _OOM_CAUSE or end.reason == "OOMKilled"


def _ran_out_of_device_memory(message: str) -> bool:
    """Whether a termination message shows it: exit codes do not distinguish it."""
    symptom = find_symptom(message)
    return symptom is not None and symptom[0].cause == "GpuOutOfMemory"


def pod_limits(pod: Pod) -> tuple[int | None, int | None]:
    """Return the limits of the main container: millicores and bytes; None without one.

    A request counts where there is no limit: it is what the pod is sure to have.
    """
    status = _main_status(pod)
    name = status.name if status is not None else ""
    for each in pod.spec.containers:
        if each.name == name:
            written = {**each.resources.requests, **each.resources.limits}
            return parsed_amount(CPU, written.get(CPU)), parsed_amount(MEMORY, written.get(MEMORY))
    return None, None


def _memory_limit(pod: Pod, container: str) -> int | None:
    for each in pod.spec.containers:
        written = each.resources.limits.get(MEMORY) if each.name == container else None
        if written is not None:
            return parsed_amount(MEMORY, written)
    return None
