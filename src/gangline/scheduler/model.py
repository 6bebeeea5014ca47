"""What the scheduler knows of nodes, pods, groups and queues: small immutable facts.

Facts hold what a decision depends on and nothing else, so that memory stays small with many pods
and two equal facts mean that nothing has to be decided again. Amounts are whole numbers: CPU in
thousandths, everything else in its own unit (bytes, devices, pods).
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
"""Begins the name of a port (``hostport:tcp:8080``), a resource of which every node has one."""

VOLUME = "volume:"
"""Begins the name of free volumes that fit a claim, a resource of the nodes that reach them."""

ATTACHED = "attach:"
"""Begins the name of places for volumes that a storage driver attaches, a resource of nodes."""

NOT_SHARED = (HOST_PORT, VOLUME, ATTACHED)
"""Resources that are no amounts to people, nor anything that queues divide."""

Request = tuple[tuple[str, int], ...]
"""Amounts asked for, sorted by resource: hashable, so that equal pods are recognised."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark on a node that keeps pods off unless they tolerate it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod puts up with. An empty key with Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Expression:
    """One condition on a node's labels or fields (In, NotIn, Exists, DoesNotExist, Gt, Lt)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Conditions that must all hold. A term without any matches no node, as in Kubernetes."""

    labels: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Other pods, and what counts as the same place: nodes with one value of a label."""

    selector: Selector
    topology_key: str
    namespaces: tuple[str, ...] | None = ()
    """Their namespaces; empty: that of the pod itself; None: all."""
    weight: int = 0
    """How much it is liked; nothing for what must hold."""


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """How evenly pods are to be spread over places."""

    pods: PodTerm
    max_skew: int = 1
    min_domains: int = 1
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Relations:
    """What a pod wants of other pods."""

    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Nodes that a pod is kept to for another reason than its own wishes."""

    terms: tuple[NodeTerm, ...]
    """Any of these must match."""
    why: str
    """What is said of the others, in Kubernetes' wording where it has one."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """Where a pod may run, apart from room. Equal constraints share one evaluation."""

    selector: tuple[tuple[str, str], ...] = ()
    required: tuple[NodeTerm, ...] | None = None
    """Any of these terms must match; None: no requirement; empty: no node will do."""
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    relations: Relations | None = None
    """None: where other pods are makes no difference to it."""
    fences: tuple[Fence, ...] = ()
    """All of these must be kept to."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: what it has, what it is called, and what keeps pods off it."""

    name: NodeName
    allocatable: Request
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    boasts: tuple[str, ...] = ()
    """Resources of which it offers more to pods than it has."""
    images: tuple[tuple[str, int], ...] = ()
    """Names, sorted, of the images that it lists, with their bytes; empty if they do not count."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a pod asks for and where it may run: pods of one shape are interchangeable.

    Made by ``shape_of`` only, one object for equal ones: tables find it by identity, at once.
    """

    request: Request
    constraints: Constraints
    images: tuple[str, ...] = ()
    """The image of each of its containers, sorted; empty if they do not count."""


@lru_cache(maxsize=16_384)
def shape_of(request: Request, constraints: Constraints, *images: str) -> Shape:
    """Return the shape of pods with this request, these constraints and these (sorted) images."""
    return Shape(request, constraints, images)


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """A pod: what it asks for, which gang it belongs to, and where it is.

    There are many, and each step of a pod's life makes a new one: structs are made several times
    as fast as dataclasses, and holding no cycles they are nothing to the garbage collector.
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
    """Its schedulerName is one that this scheduler answers to."""
    labels: tuple[tuple[str, str], ...] = ()
    preemptable: bool = True
    """It may be evicted for others."""
    preempts: bool = True
    """Others may be evicted for it."""
    claims: tuple[str, ...] = ()
    """Its claims to storage, as ``namespace/name``."""
    limit_s: float = 0.0
    """How long it may run at most; nothing: without end."""
    started: float = 0.0
    """When its node took it up, in seconds since the epoch."""
    ended: float = 0.0
    """When its last container ended, on the same clock."""
    traits: Traits = ORDINARY

    @property
    def finished(self) -> bool:
        """It has ended: it holds no room and is never placed again."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def holds_room(self) -> bool:
        """It takes room on its node, as the kubelet counts: until it has really ended."""
        return self.node is not None and not self.finished

    @property
    def waits(self) -> bool:
        """It is for this scheduler to place."""
        return (
            self.ours
            and self.node is None
            and not (self.finished or self.terminating or self.gated)
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Where the pods of a gang that restarts as a whole were: their room is kept for them."""

    until: float
    """Seconds since the epoch; after it anybody may have the room."""
    nodes: tuple[tuple[PodKey, NodeName], ...]


@dataclass(frozen=True, slots=True)
class RoleWishes:
    """Which roles of a gang would like to share nodes, and which not to."""

    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    """A role by itself: its pods are spread; several: they avoid each other."""


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """How close together in the network the pods of a gang must, or would like to, be."""

    hard: bool = True
    tier: int | None = None
    """The highest tier that may separate them; None: any that exists."""
    tier_name: str = ""


@dataclass(frozen=True, slots=True)
class PartRule:
    """Smaller gangs within a gang: which pods, how many each has, how many there must be."""

    name: str
    selector: Selector
    size: int = 1
    minimum: int = 0
    keys: tuple[str, ...] = ()
    """Pods with equal values of these labels are one small gang."""
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
    """A network domain."""

    name: str
    tier: int
    tier_name: str = ""
    members: tuple[MemberFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A pod group: how many members must run at once, and its place in the order."""

    key: GroupKey
    uid: str = ""
    min_member: int = 0
    min_task_member: tuple[tuple[str, int], ...] = ()
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    priority_class: str = ""
    created: datetime = EPOCH
    min_resources: Request = ()
    """What its minimum of pods asks for together, as far as its maker said so."""
    places: Places | None = None
    preemptable: bool = True
    """Its pods may be evicted for others."""
    roles: RoleWishes | None = None
    network: NetworkRule | None = None
    parts: tuple[PartRule, ...] = ()
    run_time_s: float = 0.0
    """How long it says that it runs at most; nothing: it does not say."""
    checkpointed: float = 0.0
    """When it last saved its work, in seconds since the epoch."""
    family: str = ""
    """Gangs that run about equally long (see ``run_times``)."""
    lodges_with: str = ""
    """In whose planned room it runs; empty: in nobody's."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue: whether it takes new gangs, and how much it may have."""

    name: str
    open: bool = True
    weight: float = 1
    capability: Request = ()
    """The most it may use of the resources named."""
    deserved: Request = ()
    """What it may have back; by weight when nothing is stated."""
    guarantee: Request = ()
    """What others may never use."""
    reclaimable: bool = True
    """Others may take back what it has too much."""
    priority: int = 0
    parent: str = ""
    fifo: bool = False
    """Nobody passes one that waits."""
    fences: tuple[Fence, ...] = ()
    """Nodes that its jobs are kept to."""
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    """Nodes that they would like, and how much."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A decision: this pod leaves its node for somebody else."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None
    beneficiary: str
    """Who gets the room."""
    reason: str
    """For people: by which rule."""


class Binding(msgspec.Struct, frozen=True, gc=False):
    """A decision: this pod runs on this node."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Why a gang, or a pod of its own, waits: for the group's and the pods' conditions."""

    reason: str
    """One of the reasons in ``reasons``, in CamelCase."""
    message: str
    pods: tuple[tuple[PodKey, str], ...] = ()
    """Each waiting pod with its own message in Kubernetes' wording."""
    group: GroupKey | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """Room on nodes that somebody who waits will get. It stays the same until it can be used."""

    places: tuple[tuple[PodKey, NodeName], ...]
    cleared: bool = False
    """Others were evicted to make it: nobody may take it, whoever is first in line."""
    since: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now: whole gangs to bind, and the reasons of those that wait."""

    bindings: tuple[Binding, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    placed: frozenset[GroupKey] = field(default_factory=frozenset)
    """Groups whose gang is complete with these bindings."""
    evictions: tuple[Eviction, ...] = ()
    """Pods to evict, whole sets at once."""
    promises: Mapping[str, Promise] = field(default_factory=dict)
    """Room that is planned for units that wait, by their names."""
    lodgers: Mapping[GroupKey, str] = field(default_factory=dict)
    """Gangs that are let into planned room for as long as their like take, and whose room it is."""
