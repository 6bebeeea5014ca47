"""The kubelet's records of a pod and its containers: the input of `compute_pod_actions`.

All records are immutable values: the workers replace them as things happen. A new kubelet rebuilds
them from the status that its predecessor wrote (`recover_record`).

The back-off of restarts is the kubelet's: the first restart is immediate, the next waits 10 seconds
from the end of the run, then 20, and so on up to 5 minutes. It is reset by a run that lasted twice
the longest delay since the last change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES, ContainerStateTerminated, ContainerStatus

AGENT_RESTARTED = "the node agent was restarted, and the container's processes ended with it"
_EXIT_LOST = 137


@dataclass(frozen=True, slots=True)
class ExitRecord:
    exit_code: int
    reason: str
    finished_at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerInstance:
    """One run of a container."""

    number: int
    """The number of runs before this one: the restart count."""

    container_id: str
    started_at: datetime
    ended: ExitRecord | None = None


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """The delay of a container's next restart, and the time of its last change."""

    delay_s: float
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why a step cannot be done yet, and when to try again."""

    reason: str
    message: str
    retry_at: datetime


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    instance: ContainerInstance | None = None
    """The newest run."""

    previous: ContainerInstance | None = None
    """The run before, which has ended."""

    starting: bool = False
    """A start is in progress."""

    backoff: RestartBackoff | None = None
    problem: StartProblem | None = None
    started: bool = False
    """The startup probe has passed; without one, the postStart hook is done."""

    ready: bool = False
    """The readiness probe passes, or there is none."""

    unhealthy: str = ""
    """The reason why a probe or hook requests a stop; empty if healthy."""

    unhealthy_grace_s: int | None = None
    kill_at: datetime | None = None
    """The time at which a run in termination is killed."""

    @property
    def running(self) -> bool:
        return self.instance is not None and self.instance.ended is None

    @property
    def ended(self) -> ExitRecord | None:
        return self.instance.ended if self.instance is not None else None

    @property
    def idle(self) -> bool:
        return not self.running and not self.starting


@dataclass(frozen=True, slots=True)
class PodFailureReason:
    reason: str
    message: str


EMPTY_RECORD = ContainerRecord()


@dataclass(frozen=True, slots=True)
class PodRecord:
    started_at: datetime
    """The time at which the kubelet accepted it."""

    ip: str = ""
    prepared: bool = False
    """Its network and volumes exist."""

    preparing: bool = False
    problem: StartProblem | None = None
    failure: PodFailureReason | None = None
    terminating_since: datetime | None = None
    """The time at which its deletion was seen."""

    released: bool = False
    """Its network and volumes were released."""

    containers: Mapping[str, ContainerRecord] = field(default_factory=dict)

    def container(self, name: str) -> ContainerRecord:
        return self.containers.get(name, EMPTY_RECORD)


def recover_record(pod: Pod, now: datetime) -> PodRecord:
    """The record of a pod when a kubelet starts: none of its containers runs any more."""
    status = pod.status
    written = [*status.init_container_statuses, *status.container_statuses]
    failure = PodFailureReason(status.reason, status.message) if status.phase == "Failed" else None
    return PodRecord(
        started_at=status.start_time or now,
        ip=status.pod_ip if is_pod_finished(pod) else "",
        failure=failure if failure and failure.reason else None,
        containers={container.name: _recover_container(container, now) for container in written},
    )


def is_pod_finished(pod: Pod) -> bool:
    return pod.status.phase in TERMINAL_PHASES


def _recover_container(status: ContainerStatus, now: datetime) -> ContainerRecord:
    last = _instance(status, status.last_state.terminated, status.restart_count - 1)
    if status.state.running is not None:
        # The reason of Kubernetes: no exit code is known, and no program caused this end.
        lost = ExitRecord(_EXIT_LOST, "ContainerStatusUnknown", now, AGENT_RESTARTED)
        began = status.state.running.started_at or now
        run = ContainerInstance(status.restart_count, status.container_id, began, lost)
        return ContainerRecord(instance=run, previous=last)
    if status.state.terminated is not None:
        run_ended = _instance(status, status.state.terminated, status.restart_count)
        return ContainerRecord(instance=run_ended, previous=last)
    # Waiting: the run before is counted already.
    newest = _instance(status, status.last_state.terminated, status.restart_count)
    return ContainerRecord(instance=newest)


def _instance(
    status: ContainerStatus, state: ContainerStateTerminated | None, number: int
) -> ContainerInstance | None:
    if state is None or state.finished_at is None:
        return None
    ended = ExitRecord(state.exit_code, state.reason, state.finished_at, state.message)
    container_id = state.container_id or status.container_id
    return ContainerInstance(number, container_id, state.started_at or state.finished_at, ended)


ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    base_s: float = 10.0
    max_s: float = 300.0


def should_restart(policy: str, ended: ExitRecord) -> bool:
    return policy in (ALWAYS, "") or (policy == ON_FAILURE and ended.exit_code != 0)


def restart_time(record: ContainerRecord, settings: BackoffSettings) -> datetime | None:
    """The earliest restart of an ended container; None means immediately."""
    ended, backoff = record.ended, record.backoff
    if ended is None or backoff is None or _is_expired(backoff, ended.finished_at, settings):
        return None
    return ended.finished_at + timedelta(seconds=backoff.delay_s)


def next_backoff(
    record: ContainerRecord, now: datetime, settings: BackoffSettings
) -> RestartBackoff | None:
    """The back-off after a start at ``now``; None for the first start."""
    ended, backoff = record.ended, record.backoff
    if ended is None:
        return None
    if backoff is None or _is_expired(backoff, ended.finished_at, settings):
        return RestartBackoff(settings.base_s, now)
    return RestartBackoff(min(backoff.delay_s * 2, settings.max_s), now)


def _is_expired(backoff: RestartBackoff, finished_at: datetime, settings: BackoffSettings) -> bool:
    return finished_at - backoff.updated_at > timedelta(seconds=2 * settings.max_s)
