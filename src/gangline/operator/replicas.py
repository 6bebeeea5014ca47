"""What is seen of a job's replicas: lean views of pods and services, and the gang they form.

The views hold only the fields that decisions read, so that a cache of thousands of pods stays
small. A ``Gang`` arranges pods in slots, one for each index of each role.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec

from gangline.api.meta import Condition, Object, Wire
from gangline.operator import labels


class Phase(StrEnum):
    """Where a pod is in its life."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Terminated(Wire):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class Waiting(Wire):
    """Why a container does not run yet, or not again yet."""

    reason: str = ""
    message: str = ""


class ContainerState(Wire):
    """At most one of the two is set; a running container has neither."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire):
    """What the kubelet says of one container."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    ready: bool = False
    last_state: ContainerState = ContainerState()


class PodStatus(Wire):
    """What the kubelet, or whoever evicted the pod, says of it."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class SecretKey(Wire):
    """One value of a Secret."""

    name: str = ""
    """The Secret's name."""


class VariableSource(Wire):
    """Where the value of a variable comes from."""

    secret_key_ref: SecretKey | None = None


class Variable(Wire):
    """An environment variable."""

    name: str = ""
    value_from: VariableSource | None = None


class Container(Wire):
    """A container of a pod, as far as decisions look at it."""

    env: tuple[Variable, ...] | None = ()


class PodPlace(Wire):
    """The part of a pod's specification that decisions read: where it was put, what it may know."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()


class Pod(Object):
    """A pod, as far as decisions look at it."""

    spec: PodPlace = PodPlace()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The pod's identity: another pod of the same name has another one."""
        return self.metadata.uid

    @property
    def terminating(self) -> bool:
        """Whether somebody has deleted the pod and it is still there."""
        return self.metadata.deletion_timestamp is not None

    @property
    def active(self) -> bool:
        """Whether the pod runs and is meant to go on."""
        return self.status.phase == Phase.RUNNING and not self.terminating

    @property
    def succeeded(self) -> bool:
        """Whether all of the pod's containers ended well, by themselves.

        One that somebody deleted may exit well too, after a last checkpoint: its work is not done.
        """
        return self.status.phase == Phase.SUCCEEDED and not self.terminating

    @property
    def failed(self) -> bool:
        """Whether the pod ended badly by itself.

        A pod that somebody deleted usually exits by SIGTERM and is then Failed too: that is no
        failure of the job.
        """
        return self.status.phase == Phase.FAILED and not self.terminating

    @property
    def over(self) -> bool:
        """Whether no process of the pod runs or will run."""
        return self.status.phase in (Phase.SUCCEEDED, Phase.FAILED)

    def secret_behind(self, variable: str) -> str:
        """Name the Secret that a variable of its containers is read from; empty: none."""
        for container in self.spec.containers:
            for each in container.env or ():
                source = each.value_from.secret_key_ref if each.value_from else None
                if each.name == variable and source:
                    return source.name
        return ""

    def ending(self, container: str) -> Terminated | None:
        """How the pod ended: the named container, else the first that failed.

        None when no container says (an eviction, a lost node).
        """
        statuses = [*self.status.container_statuses, *self.status.init_container_statuses]
        ends = {s.name: s.state.terminated for s in statuses if s.state.terminated}
        trained = ends.get(container)
        if trained and trained.exit_code:
            return trained
        return next((end for end in ends.values() if end.exit_code), trained)


def lean(pod: Pod) -> Pod:
    """Drop the variables of which nothing is read: of thousands of pods each has dozens."""
    kept = tuple(
        Container(env)
        for each in pod.spec.containers
        if (env := tuple(v for v in each.env or () if v.value_from and v.value_from.secret_key_ref))
    )
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=kept))


class ServicePlace(Wire):
    """The part of a service's specification that decisions read: where it answers."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")


class Service(Object):
    """A service, as far as decisions look at it."""

    spec: ServicePlace = ServicePlace()


class NodeStatus(Wire):
    """What is read of a node's status."""

    conditions: tuple[Condition, ...] = ()


class Node(Object):
    """A node, as far as decisions look at it."""

    status: NodeStatus = NodeStatus()

    @property
    def lost(self) -> bool:
        """Whether nothing has been heard of the node, or only that it is unwell."""
        ready = (c.status for c in self.status.conditions if c.type == "Ready")
        return next(ready, "Unknown") != "True"


@dataclass(frozen=True, slots=True)
class Slots:
    """The replicas of one role: the pod at each index, or None where there is none."""

    pods: tuple[Pod | None, ...]
    completed: frozenset[int] = frozenset()
    """Indexes that ended well, also where the pod has been removed since."""
    absent: frozenset[int] = frozenset()
    """Indexes that shall have no pod."""

    @property
    def present(self) -> list[Pod]:
        """The pods that are there."""
        return [pod for pod in self.pods if pod is not None]

    @property
    def missing(self) -> list[int]:
        """The indexes that have no pod and still need one."""
        gaps = (index for index, pod in enumerate(self.pods) if pod is None)
        return [index for index in gaps if index not in self.completed | self.absent]

    @property
    def wanted(self) -> int:
        """How many replicas there shall be."""
        return len(self.pods) - len(self.absent)

    @property
    def active(self) -> int:
        """How many run and are meant to go on."""
        return sum(pod.active for pod in self.present)

    @property
    def succeeded(self) -> int:
        """How many ended well."""
        return len(self.completed)

    @property
    def failed(self) -> int:
        """How many ended badly and have not been removed yet."""
        return sum(pod.failed for pod in self.present)

    @property
    def all_succeeded(self) -> bool:
        """Whether every replica ended well. A role without replicas proves nothing: False."""
        return self.wanted > 0 and self.succeeded == self.wanted

    @property
    def all_up(self) -> bool:
        """Whether every replica runs or ended well."""
        return self.active + self.succeeded == self.wanted


@dataclass(frozen=True, slots=True)
class Gang:
    """All replicas of a job, arranged by role, and the pods that have no place in it."""

    roles: Mapping[str, Slots]
    """By the role's name as the specification spells it."""
    surplus: tuple[Pod, ...]
    """Pods beyond a role's replicas, of a role the job no longer has, or second to an index."""
    services: Mapping[str, Service] = field(default_factory=dict)
    """The job's own services by name, except those that are going."""
    former: tuple[Pod, ...] = ()
    """Pods from before all replicas were last restarted together; they are on their way out."""

    def __getitem__(self, role: str) -> Slots:
        """The slots of a role; of an unknown one, none."""
        return self.roles.get(role, Slots(()))

    @property
    def pods(self) -> list[Pod]:
        """The pods that have a place."""
        return [pod for slots in self.roles.values() for pod in slots.present]

    @property
    def all_up(self) -> bool:
        """Whether every replica of every role runs or ended well."""
        return all(slots.all_up for slots in self.roles.values())


def arrange(
    sizes: Sequence[tuple[str, int]],
    pods: Iterable[Pod],
    completed: Mapping[str, frozenset[int]],
    services: Iterable[Service] = (),
    former: Iterable[Pod] = (),
    absent: Mapping[str, frozenset[int]] = MappingProxyType({}),
    is_present: Callable[[Pod], bool] = lambda _: True,
) -> Gang:
    """Put pods in their slots, given each role's replicas and those known to have completed.

    Of two pods with one index the elder keeps the place (then the smaller uid, so that the
    choice does not depend on the order in which they were seen).

    Args:
        sizes: each role's replicas.
        pods: the pods to arrange.
        completed: the indexes of each role that are known to have ended well.
        services: the job's services.
        former: pods that are kept apart.
        absent: indexes of each role that shall have no pod.
        is_present: whether a pod may have a place.
    """
    slots: dict[str, list[Pod | None]] = {role.lower(): [None] * size for role, size in sizes}
    gone = {role.lower(): indexes for role, indexes in absent.items()}
    surplus = []
    for pod in sorted(pods, key=_age):
        role, index = labels.replica_of(pod.metadata) or ("", 0)
        row = slots.get(role, [])
        free = index < len(row) and row[index] is None and index not in gone.get(role, ())
        if free and is_present(pod):
            row[index] = pod
        else:
            surplus.append(pod)
    return Gang(
        {
            role: _slots(slots[role.lower()], completed.get(role), gone.get(role.lower()))
            for role, _ in sizes
        },
        tuple(surplus),
        {s.metadata.name: s for s in services if s.metadata.deletion_timestamp is None},
        tuple(former),
    )


def _slots(
    row: Sequence[Pod | None], known: frozenset[int] | None, absent: frozenset[int] | None
) -> Slots:
    """A pod's own word counts; what is known of an index counts where no pod says otherwise."""
    done = set()
    for index, pod in enumerate(row):
        silent = pod is None or (pod.terminating and pod.over)
        if (silent and index in (known or ())) or (pod and pod.succeeded):
            done.add(index)
    gone = frozenset(index for index in absent or () if index < len(row))
    return Slots(tuple(row), frozenset(done) - gone, gone)


def _age(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else math.inf, pod.uid
