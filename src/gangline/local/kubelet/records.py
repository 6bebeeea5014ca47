"""What the kubelet knows of a pod: the process table that `decide` looks at.

All of it is values: the shell puts new ones in place as things happen, `decide` never changes any.
A fresh kubelet makes its records from the status that its predecessor wrote (`recover`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gangline.api.pod import Pod
from gangline.api.podstatus import ContainerStateTerminated, ContainerStatus

AGENT_RESTARTED = "the node agent was restarted, and the container's processes ended with it"
_EXIT_LOST = 137


@dataclass(frozen=True, slots=True)
class Ended:
    """How an instance of a container ended."""

    exit_code: int
    reason: str
    finished_at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a container."""

    number: int
    """Counts the runs from 0: the restarts so far."""

    container_id: str
    started_at: datetime
    ended: Ended | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long the next restart of a container waits, and since when that holds."""

    delay_s: float
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be done yet, and when to try again."""

    reason: str
    message: str
    retry_at: datetime


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """What is known of one container."""

    instance: Instance | None = None
    """The newest run."""

    previous: Instance | None = None
    """The run before, which has ended."""

    starting: bool = False
    """A start was ordered and has neither succeeded nor failed."""

    backoff: Backoff | None = None
    problem: Problem | None = None
    started: bool = False
    """Its startup probe has passed, or it has none and its start hook is done."""

    ready: bool = False
    """Its readiness probe passes, or it has none."""

    unhealthy: str = ""
    """Why a probe or hook wants the run to be ended."""

    unhealthy_grace_s: int | None = None
    stop_by: datetime | None = None
    """When a run that was asked to end will be killed."""

    @property
    def running(self) -> bool:
        """Whether a run is on."""
        return self.instance is not None and self.instance.ended is None

    @property
    def ended(self) -> Ended | None:
        """How the newest run ended."""
        return self.instance.ended if self.instance is not None else None

    @property
    def idle(self) -> bool:
        """Whether nothing of it runs or is about to."""
        return not self.running and not self.starting


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod as a whole has failed."""

    reason: str
    message: str


NEW = ContainerRecord()


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is known of one pod."""

    started_at: datetime
    """When the kubelet took it up."""

    ip: str = ""
    prepared: bool = False
    """Its network and volumes are there."""

    preparing: bool = False
    problem: Problem | None = None
    failure: Failure | None = None
    leaving_since: datetime | None = None
    """When its deletion was seen."""

    released: bool = False
    """Its network and volumes were taken back."""

    containers: Mapping[str, ContainerRecord] = field(default_factory=dict)

    def of(self, name: str) -> ContainerRecord:
        """What is known of a container."""
        return self.containers.get(name, NEW)


def recover(pod: Pod, now: datetime) -> PodRecord:
    """The record of a pod as a kubelet finds it that has just started: nothing runs any more."""
    status = pod.status
    written = [*status.init_container_statuses, *status.container_statuses]
    failure = Failure(status.reason, status.message) if status.phase == "Failed" else None
    return PodRecord(
        started_at=status.start_time or now,
        ip=status.pod_ip if is_over(pod) else "",
        failure=failure if failure and failure.reason else None,
        containers={each.name: _recover_container(each, now) for each in written},
    )


def is_over(pod: Pod) -> bool:
    """Whether the pod's status says that it has ended for good."""
    return pod.status.phase in ("Succeeded", "Failed")


def _recover_container(status: ContainerStatus, now: datetime) -> ContainerRecord:
    last = _instance(status, status.last_state.terminated, status.restart_count - 1)
    if status.state.running is not None:
        lost = Ended(_EXIT_LOST, "Error", now, AGENT_RESTARTED)
        began = status.state.running.started_at or now
        run = Instance(status.restart_count, status.container_id, began, lost)
        return ContainerRecord(instance=run, previous=last)
    if status.state.terminated is not None:
        run_ended = _instance(status, status.state.terminated, status.restart_count)
        return ContainerRecord(instance=run_ended, previous=last)
    # Waiting: what it waits for follows a run that was counted already.
    newest = _instance(status, status.last_state.terminated, status.restart_count)
    return ContainerRecord(instance=newest)


def _instance(
    status: ContainerStatus, state: ContainerStateTerminated | None, number: int
) -> Instance | None:
    if state is None or state.finished_at is None:
        return None
    ended = Ended(state.exit_code, state.reason, state.finished_at, state.message)
    container_id = state.container_id or status.container_id
    return Instance(number, container_id, state.started_at or state.finished_at, ended)
