"""What to start and stop for a pod, from its spec and its records.

`compute_pod_actions` is pure: the same pod, record and time give the same decision. The loop
(`pod_worker`) executes the decision, records the results, and calls it again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.local.kubelet.records import (
    ALWAYS,
    NEVER,
    BackoffSettings,
    ContainerRecord,
    PodFailureReason,
    PodRecord,
    is_pod_finished,
    restart_time,
    should_restart,
)

DEFAULT_GRACE_S = 30
DEADLINE_EXCEEDED = PodFailureReason(
    "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
)


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop a run, and kill it at ``by`` if it still runs."""

    container: str
    kill_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class PodActions:
    """The actions for a pod, and the time of the next check if nothing happens before."""

    prepare: bool = False
    """True: attach the network and create the volumes."""

    start: tuple[str, ...] = ()
    stop: tuple[StopContainer, ...] = ()
    finished: bool = False
    """True if nothing of the pod runs and nothing will run again."""

    release: bool = False
    """True: detach the network and remove the volumes."""

    remove: bool = False
    """True: delete the object, since nothing of the pod is left on the node."""

    failure: PodFailureReason | None = None
    """The reason why the pod has failed; the caller records it."""

    requeue_at: datetime | None = None


def compute_pod_actions(
    pod: Pod, record: PodRecord, now: datetime, backoff: BackoffSettings
) -> PodActions:
    """Return the actions that bring the pod's processes to the state that its spec asks for."""
    deadline, failure = _deadline(pod, record), record.failure
    if failure is None and deadline and deadline <= now and not _is_finished(pod, record):
        failure = DEADLINE_EXCEEDED
    if record.terminating_since is not None:
        return _terminate_deleted(pod, record, failure)
    if failure is not None:
        return replace(_terminate_finished(pod, record, now, failure.message), failure=failure)
    if _is_finished(pod, record):
        return _terminate_finished(pod, record, now, "all other containers of the pod have ended")
    if not record.prepared:
        retry = record.problem.retry_at if record.problem else now
        due = retry <= now and not record.preparing
        return PodActions(prepare=due, requeue_at=_earliest([deadline, None if due else retry]))
    return replace(_run(pod, record, now, backoff), failure=failure)


def grace_period_s(pod: Pod) -> int:
    desired = pod.metadata.deletion_grace_period_seconds
    if desired is None:
        desired = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE_S if desired is None else max(desired, 0)


def is_sidecar(container: Container) -> bool:
    return container.restart_policy == ALWAYS


def has_initialized(pod: Pod, record: PodRecord) -> bool:
    """True if all init containers are done, or were when the containers were first started."""
    if any(record.container(container.name).instance for container in pod.spec.containers):
        return True
    return all(
        _init_done(init_container, record.container(init_container.name))
        for init_container in pod.spec.init_containers
    )


def _init_done(container: Container, record: ContainerRecord) -> bool:
    if is_sidecar(container):
        return record.running and record.started
    return record.ended is not None and record.ended.exit_code == 0


def _deadline(pod: Pod, record: PodRecord) -> datetime | None:
    seconds = pod.spec.active_deadline_seconds
    return None if seconds is None else record.started_at + timedelta(seconds=seconds)


def _is_finished(pod: Pod, record: PodRecord) -> bool:
    """True if no container except sidecars will run again; sidecars do not keep a pod running."""
    if is_pod_finished(pod):
        return True
    policy = pod.spec.restart_policy
    if policy == NEVER and not has_initialized(pod, record):
        return any(
            record.container(init_container.name).ended
            and not _init_done(init_container, record.container(init_container.name))
            for init_container in pod.spec.init_containers
            if not is_sidecar(init_container)
        )
    mains = [record.container(container.name) for container in pod.spec.containers]
    return bool(mains) and all(
        main.idle and main.ended and not should_restart(policy, main.ended) for main in mains
    )


def _run(pod: Pod, record: PodRecord, now: datetime, backoff: BackoffSettings) -> PodActions:
    start: list[str] = []
    times: list[datetime | None] = [_deadline(pod, record)]
    for container, policy in _desired_containers(pod, record):
        container_record = record.container(container.name)
        if not container_record.idle or (
            container_record.ended and not should_restart(policy, container_record.ended)
        ):
            continue
        due = (
            container_record.problem.retry_at
            if container_record.problem
            else restart_time(container_record, backoff)
        )
        if due is None or due <= now:
            start.append(container.name)
        else:
            times.append(due)
    stop = tuple(
        StopContainer(
            name, now + _unhealthy_grace(pod, container_record), container_record.unhealthy
        )
        for name, container_record in record.containers.items()
        if container_record.running
        and container_record.unhealthy
        and container_record.kill_at is None
    )
    return PodActions(start=tuple(start), stop=stop, requeue_at=_earliest(times))


def _desired_containers(pod: Pod, record: PodRecord) -> list[tuple[Container, str]]:
    """The containers that should run or have run by now, each with its restart policy."""
    desired: list[tuple[Container, str]] = []
    initialized = has_initialized(pod, record)
    for container in pod.spec.init_containers:
        container_record = record.container(container.name)
        if is_sidecar(container):
            desired.append((container, ALWAYS))
        elif not initialized and not _init_done(container, container_record):
            # A failed one is retried: with restartPolicy Never the pod would have finished before.
            desired.append((container, ALWAYS))
        if not initialized and not _init_done(container, container_record):
            return desired
    return desired + [(container, pod.spec.restart_policy) for container in pod.spec.containers]


def _unhealthy_grace(pod: Pod, record: ContainerRecord) -> timedelta:
    seconds = record.unhealthy_grace_s
    return timedelta(seconds=grace_period_s(pod) if seconds is None else seconds)


def _terminate_deleted(pod: Pod, record: PodRecord, failure: PodFailureReason | None) -> PodActions:
    assert record.terminating_since is not None, "called for pods in termination only"
    by = record.terminating_since + timedelta(seconds=grace_period_s(pod))
    decision = _stop_containers(pod, record, by, "the pod is being deleted")
    return replace(decision, failure=failure, remove=decision.finished and record.released)


def _terminate_finished(pod: Pod, record: PodRecord, now: datetime, why: str) -> PodActions:
    return _stop_containers(pod, record, now + timedelta(seconds=grace_period_s(pod)), why)


def _stop_containers(pod: Pod, record: PodRecord, by: datetime, why: str) -> PodActions:
    """Stop containers; sidecars only after the containers that they serve."""
    inits = pod.spec.init_containers
    sidecars = [container.name for container in inits if is_sidecar(container)]
    others = [container.name for container in (*pod.spec.containers, *inits)]
    for names in ([name for name in others if name not in sidecars], sidecars):
        if any(not record.container(name).idle for name in names):
            running = {name: record.container(name) for name in names}
            return PodActions(
                stop=tuple(
                    StopContainer(name, by, why)
                    for name, run in running.items()
                    if run.running and (run.kill_at is None or by < run.kill_at)
                )
            )
    return PodActions(finished=True, release=not record.released and not record.preparing)


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
