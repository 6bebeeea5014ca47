"""Values of the scheduler: nodes, pods, pod groups and queues, and the result of a cycle.

Values are immutable and hold only what a scheduling decision depends on. So memory stays small with
many pods, and two equal values mean that nothing has to be decided again. Amounts are integers: CPU
in thousandths, everything else in its own unit (bytes, devices, pods).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import NewType

import msgspec

from gangline.api.scheduling import DEFAULT_QUEUE
from gangline.api.selectors import Selector
from gangline.scheduler.scopes import ORDINARY, Traits

NodeName = NewType("NodeName", str)
PodKey = NewType("PodKey", str)
"""``namespace/name`` of a pod."""
GroupKey = NewType("GroupKey", str)
"""``namespace/name`` of a pod group."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HOST_PORT = "hostport:"
"""Prefix of a host port (``hostport:tcp:8080``), a resource of which every node has one."""

VOLUME = "volume:"
"""Prefix of free volumes that match a claim, a resource of the nodes that reach them."""

ATTACHED = "attach:"
"""Prefix of attachable volumes of a storage driver, a resource of nodes."""

NOT_SHARED = (HOST_PORT, VOLUME, ATTACHED)
"""Prefixes of internal resources: messages do not show them, and queues do not divide them."""

Request = tuple[tuple[str, int], ...]
"""Requested amounts, sorted by resource: hashable, so that equal pods are recognised."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration. An empty key with the operator Exists tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Expression:
    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Node conditions that must all hold. A term without conditions matches no node, as in
    Kubernetes.
    """

    labels: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Selects other pods within one topology domain: nodes with the same value of a label."""

    selector: Selector
    topology_key: str
    namespaces: tuple[str, ...] | None = ()
    """Namespaces of the selected pods. Empty: the namespace of the pod itself. None: all
    namespaces.
    """
    weight: int = 0
    """Weight of a preferred term; 0 if the term is required."""


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    pods: PodTerm
    max_skew: int = 1
    min_domains: int = 1
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Relations:
    """Inter-pod affinity, anti-affinity and topology spread of a pod."""

    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Node terms that a pod must match besides its own, from the node groups of its queue or its
    volumes.
    """

    terms: tuple[NodeTerm, ...]
    """A node must match at least one of these terms."""
    why: str
    """The message for other nodes, in Kubernetes' wording where it has one."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """Where a pod may run, apart from free resources. Equal constraints share one evaluation."""

    selector: tuple[tuple[str, str], ...] = ()
    required: tuple[NodeTerm, ...] | None = None
    """A node must match at least one term. None: no requirement. Empty: no node matches."""
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    relations: Relations | None = None
    """None: the pod has no rules about other pods."""
    fences: tuple[Fence, ...] = ()
    """A node must match all of these."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: NodeName
    allocatable: Request
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    boasts: tuple[str, ...] = ()
    """Resources whose allocatable amount exceeds the capacity."""
    images: tuple[tuple[str, int], ...] = ()
    """Image names, sorted, with their bytes. Empty if image locality has no weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The request and the constraints of a pod: pods of one shape are interchangeable.

    Created by ``shape_of`` only, which returns one object for equal shapes: tables find it by
    identity.
    """

    request: Request
    constraints: Constraints
    images: tuple[str, ...] = ()
    """The image of each container, sorted. Empty if image locality has no weight."""


@lru_cache(maxsize=16_384)
def shape_of(request: Request, constraints: Constraints, *images: str) -> Shape:
    return Shape(request, constraints, images)


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """A pod: its shape, its gang, and its node.

    Each step of a pod's life creates a new one. A msgspec struct is created several times as fast
    as a dataclass, and the garbage collector does not track it (``gc=False``: it is never part of a
    cycle).
    """

    key: PodKey
    uid: str
    shape: Shape
    created: datetime = EPOCH
    priority: int = 0
    group: GroupKey | None = None
    role: str = ""
    node: NodeName | None = None
    phase: str = "Pending"
    terminating: bool = False
    gated: bool = False
    ours: bool = True
    """True if its schedulerName is one that this scheduler serves."""
    labels: tuple[tuple[str, str], ...] = ()
    preemptable: bool = True
    """True if the pod may be evicted for other pods."""
    preempts: bool = True
    """True if other pods may be evicted for this pod."""
    claims: tuple[str, ...] = ()
    """Keys (``namespace/name``) of its PersistentVolumeClaims."""
    limit_s: float = 0.0
    """Maximum run time in seconds; 0: unlimited."""
    started: float = 0.0
    """Start time on its node, in seconds since the epoch; 0: not started."""
    ended: float = 0.0
    """End of its last container, in seconds since the epoch; 0: unknown."""
    traits: Traits = ORDINARY

    @property
    def finished(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def holds_room(self) -> bool:
        """True if the pod uses resources of its node, as the kubelet counts: until it has really
        ended.
        """
        return self.node is not None and not self.finished

    @property
    def waits(self) -> bool:
        """True if this scheduler has to place the pod."""
        return (
            self.ours
            and self.node is None
            and not (self.finished or self.terminating or self.gated)
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Nodes on which the pods of a restarting gang ran before. They are reserved for the gang."""

    until: float
    """Expiry, in seconds since the epoch: afterwards any pod may use the nodes."""
    nodes: tuple[tuple[PodKey, NodeName], ...]


@dataclass(frozen=True, slots=True)
class RoleWishes:
    """Which roles of a gang prefer to share nodes, and which prefer not to."""

    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    """A single role: its pods are spread. Several roles: they avoid each other."""


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """How close in the network the pods of a gang must be, or prefer to be."""

    hard: bool = True
    tier: int | None = None
    """Highest tier of a domain that holds the gang; None: any existing tier."""
    tier_name: str = ""


@dataclass(frozen=True, slots=True)
class PartRule:
    """A subGroupPolicy: which pods form subgroups, their size, and the minimal count."""

    name: str
    selector: Selector
    size: int = 1
    minimum: int = 0
    keys: tuple[str, ...] = ()
    """Pods with equal values of these labels form one subgroup."""
    network: NetworkRule | None = None


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """Members of a network domain: domains or nodes, by name, pattern or labels."""

    hypernode: bool
    exact: str = ""
    pattern: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HyperNodeFacts:
    name: str
    tier: int
    tier_name: str = ""
    members: tuple[MemberFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A pod group: how many members must start together, and what orders it."""

    key: GroupKey
    uid: str = ""
    min_member: int = 0
    min_task_member: tuple[tuple[str, int], ...] = ()
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    priority_class: str = ""
    created: datetime = EPOCH
    min_resources: Request = ()
    """Total request of its minimal members, if the creator of the group states it."""
    places: Places | None = None
    preemptable: bool = True
    """True if its pods may be evicted for other pods."""
    roles: RoleWishes | None = None
    network: NetworkRule | None = None
    parts: tuple[PartRule, ...] = ()
    run_time_s: float = 0.0
    """Maximum run time in seconds that the group states; 0: not stated."""
    checkpointed: float = 0.0
    """Time of its last checkpoint, in seconds since the epoch; 0: unknown."""
    family: str = ""
    """Gangs that run about equally long (see ``run_times``)."""
    lodges_with: str = ""
    """In whose planned room it runs; empty: in nobody's."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue: its place in the tree, its limits and shares, and whether it is open."""

    name: str
    open: bool = True
    weight: float = 1
    capability: Request = ()
    """Maximal usage of the named resources."""
    deserved: Request = ()
    """Fair share that the queue may reclaim; if empty, the share follows from the weight."""
    guarantee: Request = ()
    """Amounts that other queues never use."""
    reclaimable: bool = True
    """True if other queues may reclaim what it uses above its fair share."""
    priority: int = 0
    parent: str = ""
    fifo: bool = False
    """True if a pending gang blocks later gangs of the queue."""
    fences: tuple[Fence, ...] = ()
    """Node terms that its pods must match."""
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    """Node terms that its pods prefer, with weights."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Part of a cycle's result: this pod is evicted for a gang."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None
    beneficiary: str
    """Name of the gang that gets the resources."""
    reason: str
    """The rule that allows the eviction, as a text for people."""


class Binding(msgspec.Struct, frozen=True, gc=False):
    """Part of a cycle's result: this pod runs on this node."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Why a gang, or a single pod, is pending: the text of conditions of the group and its pods."""

    reason: str
    """One of the CamelCase reasons in ``reasons``."""
    message: str
    pods: tuple[tuple[PodKey, str], ...] = ()
    """Each pending pod with its own message in Kubernetes' wording."""
    group: GroupKey | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """Nodes reserved for a pending gang. A reservation stays the same until it can be used."""

    places: tuple[tuple[PodKey, NodeName], ...]
    cleared: bool = False
    """True if pods were evicted for it: then no other gang may use the nodes, whatever its order.
    """
    since: float = 0.0
    """Creation time in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a cycle: bindings of complete gangs, evictions, reasons."""

    bindings: tuple[Binding, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    placed: frozenset[GroupKey] = field(default_factory=frozenset)
    """Groups whose minimum is complete with these bindings."""
    evictions: tuple[Eviction, ...] = ()
    """Pods to evict; victim sets are complete."""
    promises: Mapping[str, Promise] = field(default_factory=dict)
    """Reservations by the name of their gang."""
    lodgers: Mapping[GroupKey, str] = field(default_factory=dict)
    """Gangs that are let into planned room for as long as their like take, and whose room it is."""
