"""Lean views of a job's pods and services, and the replica slots that they fill.

The views have only the fields that planning reads, so a cache of thousands of pods stays small. A
``ReplicaGang`` has one slot for each index of each role. Sets of indexes are stored as text in the
format of Kubernetes' indexed jobs: ``0,2-4``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType

import msgspec

from gangline.api.failure import DISRUPTION_TARGET, PREEMPTED_CONDITION
from gangline.api.meta.objects import Condition, Object, Wire
from gangline.operator.model import labels


def format_indexes(indexes: Iterable[int]) -> str:
    ordered = enumerate(sorted(set(indexes)))
    # Within a run, the difference between index and position is constant.
    runs = [[index for _, index in run] for _, run in groupby(ordered, lambda e: e[1] - e[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_indexes(text: str) -> frozenset[int]:
    """Parse a set of indexes. Unreadable parts are ignored, because users may edit the status."""
    indexes: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            indexes.update(range(int(first), min(int(last or first), _MAX_INDEX) + 1))
    return frozenset(indexes)


_MAX_INDEX = 1_000_000
"""No job has this many replicas; a larger number is an error and must not fill the memory."""


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ObservedTermination(Wire):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class ObservedWaiting(Wire):
    reason: str = ""
    message: str = ""


class ObservedRunning(Wire):
    started_at: datetime | None = None


class ObservedContainerState(Wire):
    """At most one of the three is set."""

    waiting: ObservedWaiting | None = None
    terminated: ObservedTermination | None = None
    running: ObservedRunning | None = None


class ObservedContainerStatus(Wire):
    name: str = ""
    restart_count: int = 0
    state: ObservedContainerState = ObservedContainerState()
    ready: bool = False
    last_state: ObservedContainerState = ObservedContainerState()


class ObservedPodStatus(Wire):
    """The status of a pod, as set by the kubelet or by the component that evicted it."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")
    container_statuses: tuple[ObservedContainerStatus, ...] = ()
    init_container_statuses: tuple[ObservedContainerStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
    """Only those about a disruption: see ``strip_pod``."""


class ObservedPodSpec(Wire):
    node_name: str = ""


class ObservedPod(Object):
    spec: ObservedPodSpec = ObservedPodSpec()
    status: ObservedPodStatus = ObservedPodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_active(self) -> bool:
        """True if the pod runs and is not being deleted."""
        return self.status.phase == PodPhase.RUNNING and not self.is_terminating

    @property
    def is_ready(self) -> bool:
        return self.is_active and all(status.ready for status in self.status.container_statuses)

    @property
    def succeeded(self) -> bool:
        """True if all containers of the pod exited with 0 and the pod was not deleted.

        A deleted pod may also exit with 0, after a last checkpoint: its work is unfinished.
        """
        return self.status.phase == PodPhase.SUCCEEDED and not self.is_terminating

    @property
    def failed(self) -> bool:
        """True if the pod failed and was not deleted: a deleted pod usually ends by SIGTERM, as
        Failed.
        """
        return self.status.phase == PodPhase.FAILED and not self.is_terminating

    @property
    def is_finished(self) -> bool:
        """True if no process of the pod runs or will run."""
        return self.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    def termination_of(self, container: str) -> ObservedTermination | None:
        """Return how the main container ended, or else the first that failed.

        None if no container has ended (an eviction, a lost node).
        """
        statuses = [*self.status.container_statuses, *self.status.init_container_statuses]
        ends = {s.name: s.state.terminated for s in statuses if s.state.terminated}
        trained = ends.get(container)
        if trained and trained.exit_code:
            return trained
        return next((end for end in ends.values() if end.exit_code), trained)


def strip_pod(pod: ObservedPod) -> ObservedPod:
    """Drop conditions that planning does not read: each of thousands of pods has several."""
    conditions = tuple(
        condition
        for condition in pod.status.conditions
        if condition.type in (DISRUPTION_TARGET, PREEMPTED_CONDITION)
    )
    status = msgspec.structs.replace(pod.status, conditions=conditions)
    return msgspec.structs.replace(pod, status=status)


class ObservedServiceSpec(Wire):
    cluster_ip: str = msgspec.field(name="clusterIP", default="")


class ObservedService(Object):
    spec: ObservedServiceSpec = ObservedServiceSpec()


class ObservedNodeStatus(Wire):
    conditions: tuple[Condition, ...] = ()


class ObservedNode(Object):
    status: ObservedNodeStatus = ObservedNodeStatus()

    @property
    def is_lost(self) -> bool:
        """True unless the node's Ready condition is True."""
        ready = (c.status for c in self.status.conditions if c.type == "Ready")
        return next(ready, "Unknown") != "True"


@dataclass(frozen=True, slots=True)
class ReplicaSlots:
    """The replicas of one role: the pod at each index, or None."""

    pods: tuple[ObservedPod | None, ...]
    completed: frozenset[int] = frozenset()
    """Indexes that have succeeded, also those whose pod was deleted since."""
    excluded: frozenset[int] = frozenset()
    """Indexes that must have no pod."""

    @property
    def present(self) -> list[ObservedPod]:
        return [pod for pod in self.pods if pod is not None]

    @property
    def missing(self) -> list[int]:
        gaps = (index for index, pod in enumerate(self.pods) if pod is None)
        return [index for index in gaps if index not in self.completed | self.excluded]

    @property
    def desired(self) -> int:
        return len(self.pods) - len(self.excluded)

    @property
    def active(self) -> int:
        return sum(pod.is_active for pod in self.present)

    @property
    def succeeded(self) -> int:
        return len(self.completed)

    @property
    def failed(self) -> int:
        return sum(pod.failed for pod in self.present)

    @property
    def all_succeeded(self) -> bool:
        """True if every replica has succeeded; False for a role without replicas."""
        return self.desired > 0 and self.succeeded == self.desired

    @property
    def agents_succeeded(self) -> bool:
        """True if the agents of an elastic role have succeeded.

        One is enough: they end together, and one that started too late to join them never
        succeeds. The first may still be about to end: it hosts the rendezvous, and its log is that
        of rank 0.
        """
        first = self.pods[0] if self.pods else None
        return 0 in self.completed or (self.succeeded > 0 and not (first and first.is_active))

    @property
    def all_running_or_succeeded(self) -> bool:
        return self.active + self.succeeded == self.desired


@dataclass(frozen=True, slots=True)
class ReplicaGang:
    """All replicas of a job by role, and the pods without a slot."""

    roles: Mapping[str, ReplicaSlots]
    """The slots by role, with the role's name as in the specification."""
    surplus: tuple[ObservedPod, ...]
    """Pods of an index or role that the job does not have, or second to an index."""
    services: Mapping[str, ObservedService] = field(default_factory=dict)
    """The job's services by name, without those that are being deleted."""
    previous_generation: tuple[ObservedPod, ...] = ()
    """Pods of earlier generations, which are being deleted."""

    def __getitem__(self, role: str) -> ReplicaSlots:
        """The slots of a role; no slots for an unknown role."""
        return self.roles.get(role, ReplicaSlots(()))

    @property
    def pods(self) -> list[ObservedPod]:
        return [pod for slots in self.roles.values() for pod in slots.present]

    @property
    def all_running_or_succeeded(self) -> bool:
        return all(slots.all_running_or_succeeded for slots in self.roles.values())


def fill_slots(
    sizes: Sequence[tuple[str, int]],
    pods: Iterable[ObservedPod],
    completed: Mapping[str, frozenset[int]],
    services: Iterable[ObservedService] = (),
    previous_generation: Iterable[ObservedPod] = (),
    excluded: Mapping[str, frozenset[int]] = MappingProxyType({}),
    is_current: Callable[[ObservedPod], bool] = lambda _: True,
) -> ReplicaGang:
    """Assign pods to slots, given the completed and the excluded indexes of each role.

    Of two pods with one index the older gets the slot (then the smaller uid, so that the result
    does not depend on the order of the pods).
    """
    slots: dict[str, list[ObservedPod | None]] = {
        role.lower(): [None] * size for role, size in sizes
    }
    excluded_by_role = {role.lower(): indexes for role, indexes in excluded.items()}
    surplus = []
    for pod in sorted(pods, key=_age):
        role, index = labels.parse_replica_labels(pod.metadata) or ("", 0)
        row = slots.get(role, [])
        free = (
            index < len(row) and row[index] is None and index not in excluded_by_role.get(role, ())
        )
        if free and is_current(pod):
            row[index] = pod
        else:
            surplus.append(pod)
    return ReplicaGang(
        {
            role: _slots(
                slots[role.lower()], completed.get(role), excluded_by_role.get(role.lower())
            )
            for role, _ in sizes
        },
        tuple(surplus),
        {s.metadata.name: s for s in services if s.metadata.deletion_timestamp is None},
        tuple(previous_generation),
    )


def _slots(
    row: Sequence[ObservedPod | None],
    completed: frozenset[int] | None,
    absent: frozenset[int] | None,
) -> ReplicaSlots:
    """The phase of a pod takes precedence; the status counts only for an index without a pod."""
    done = set()
    for index, pod in enumerate(row):
        silent = pod is None or (pod.is_terminating and pod.is_finished)
        if (silent and index in (completed or ())) or (pod and pod.succeeded):
            done.add(index)
    excluded = frozenset(index for index in absent or () if index < len(row))
    return ReplicaSlots(tuple(row), frozenset(done) - excluded, excluded)


def _age(pod: ObservedPod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else math.inf, pod.uid
