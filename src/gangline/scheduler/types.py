"""Values of the scheduler: nodes, pods, pod groups, queues and budgets, and the result of a cycle.

Values are immutable and hold only what a scheduling decision depends on. So memory stays small with
many pods, and two equal values mean that nothing has to be decided again. Amounts are integers: CPU
in thousandths, everything else in its own unit (bytes, devices, pods).

Scopes of resource quotas: which pods a quota counts, with the rules of Kubernetes.

Some attributes of pods that do not exist yet are unknown. An unknown attribute is never in scope:
the API server decides when the pod is created.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from functools import lru_cache
from typing import NewType

import msgspec

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.selectors import EVERYTHING, Selector
from gangline.api.volcano.scheduling import DEFAULT_QUEUE

PRIORITY_CLASS = "PriorityClass"


@dataclass(frozen=True, slots=True)
class QuotaAttributes:
    """Attributes of a pod that quota scopes select by. None: unknown."""

    terminating: bool | None = False
    """True if the pod has ``activeDeadlineSeconds``."""
    best_effort: bool | None = False
    """True if the pod requests neither CPU nor memory."""
    priority_class: str | None = ""
    crosses_namespaces: bool | None = False
    """True if the pod's affinity terms name namespaces or select them."""


DEFAULT_QUOTA_ATTRIBUTES = QuotaAttributes()


@lru_cache(maxsize=1024)
def quota_attributes_of(
    terminating: bool | None,
    best_effort: bool | None,
    priority_class: str | None,
    crosses_namespaces: bool | None,
) -> QuotaAttributes:
    """Return one object for equal attributes: there are many pods."""
    return QuotaAttributes(terminating, best_effort, priority_class, crosses_namespaces)


@dataclass(frozen=True, slots=True)
class QuotaScopeRule:
    """One condition on the pods that a quota counts."""

    name: str
    classes: Selector = EVERYTHING
    """Selects priority classes; used by the scope PriorityClass only."""

    def includes(self, pod: QuotaAttributes) -> bool:
        """Return whether a pod is certainly in scope. Unknown scopes are for other kinds of
        objects.
        """
        match self.name:
            case "Terminating":
                return pod.terminating is True
            case "NotTerminating":
                return pod.terminating is False
            case "BestEffort":
                return pod.best_effort is True
            case "NotBestEffort":
                return pod.best_effort is False
            case "CrossNamespacePodAffinity":
                return pod.crosses_namespaces is True
            case "PriorityClass" if pod.priority_class is not None:
                named = {PRIORITY_CLASS: pod.priority_class} if pod.priority_class else {}
                return self.classes.matches(named)
        return False

    def __str__(self) -> str:
        """Return the scope as the user wrote it for kubectl."""
        return str(self.classes) if self.name == PRIORITY_CLASS else self.name


def all_in_scopes(scopes: Iterable[QuotaScopeRule], pods: Iterable[QuotaAttributes]) -> bool:
    """Return whether all pods are certainly in all scopes."""
    listed = list(pods)
    return all(scope.includes(pod) for scope in scopes for pod in listed)


NodeName = NewType("NodeName", str)
PodKey = NewType("PodKey", str)
"""``namespace/name`` of a pod."""
GroupKey = NewType("GroupKey", str)
"""``namespace/name`` of a pod group."""
GangId = NewType("GangId", str)
"""Identity of a gang: the key of its group, or ``namespace/name/pod`` for a pod without one.

A pod and a group may have the same namespace and name. No group has the identity of a pod, as names
contain no slash.
"""


_SINGLE_POD = "/pod"
_KUBERNETES_GROUP = "/podgroup"


def kubernetes_group_key(namespace: str, name: str) -> GroupKey:
    """Return the key of a PodGroup of Kubernetes: one of Volcano may have the same name."""
    return GroupKey(f"{namespace}/{name}{_KUBERNETES_GROUP}")


def is_kubernetes_group(key: str) -> bool:
    return key.endswith(_KUBERNETES_GROUP)


def group_name(key: GroupKey) -> tuple[str, str]:
    """Return namespace and name of the object that a key stands for."""
    namespace, _, name = key.removesuffix(_KUBERNETES_GROUP).partition("/")
    return namespace, name


def single_pod_id(key: str) -> GangId:
    """Return the identity of a pod without a group, as a gang of one."""
    return GangId(f"{key}{_SINGLE_POD}")


def single_pod_key(gang: GangId) -> PodKey | None:
    """Return the key of the pod of which a gang consists; None: it is a group."""
    key = gang.removesuffix(_SINGLE_POD)
    return PodKey(key) if "/" in key and key != gang else None


def gang_name(gang: GangId) -> str:
    """Return ``namespace/name`` of a group, or of a single pod, for people."""
    return str(single_pod_key(gang) or gang.removesuffix(_KUBERNETES_GROUP))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HOST_PORT_PREFIX = "hostport:"
"""Prefix of host ports, resources of which every node has ``HOST_PORT_CAPACITY``.

A port on all addresses takes all of ``hostport:tcp:8080``; one on the address A takes one of that,
and all of ``hostport:tcp:8080:A``.
"""
HOST_PORT_CAPACITY = 2**20

ATTACHMENT_PREFIX = "attach:"
"""Prefix of attachable volumes of a storage driver, a resource of nodes."""

INTERNAL_RESOURCE_PREFIXES = (HOST_PORT_PREFIX, ATTACHMENT_PREFIX)
"""Prefixes of internal resources: messages do not show them, and queues do not divide them."""

Request = tuple[tuple[str, int], ...]
"""Requested amounts, sorted by resource: hashable, so that equal pods are recognised."""


@dataclass(frozen=True, slots=True)
class TaintInfo:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class TolerationInfo:
    """A toleration. An empty key with the operator Exists tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class LabelExpression:
    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Node conditions that must all hold. A term without conditions matches no node, as in
    Kubernetes.
    """

    labels: tuple[LabelExpression, ...] = ()
    fields: tuple[LabelExpression, ...] = ()


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
    honors_affinity: bool = True
    """Nodes that the pod's node affinity and selector exclude are no domains."""
    honors_taints: bool = False
    """Nodes with taints that the pod does not tolerate are no domains."""


@dataclass(frozen=True, slots=True)
class InterPodRules:
    """Inter-pod affinity, anti-affinity and topology spread of a pod."""

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class RequiredNodeTerms:
    """Node terms that a pod must match besides its own, from the node groups of its queue or its
    volumes.
    """

    terms: tuple[NodeTerm, ...]
    """A node must match at least one of these terms."""
    message: str
    """The message for other nodes, in Kubernetes' wording where it has one."""


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """Where a pod may run, apart from free resources. Equal constraints share one evaluation."""

    selector: tuple[tuple[str, str], ...] = ()
    required: tuple[NodeTerm, ...] | None = None
    """A node must match at least one term. None: no requirement. Empty: no node matches."""
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[TolerationInfo, ...] = ()
    inter_pod: InterPodRules | None = None
    """None: the pod has no rules about other pods."""
    required_node_terms: tuple[RequiredNodeTerms, ...] = ()
    """A node must match all of these."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    name: NodeName
    allocatable: Request
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[TaintInfo, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    overreported_resources: tuple[str, ...] = ()
    """Resources whose allocatable amount exceeds the capacity."""
    images: tuple[tuple[str, int], ...] = ()
    """Image names, sorted, with their bytes. Empty if image locality has no weight."""


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """The request and the constraints of a pod: pods of one shape are interchangeable.

    Created by ``shape_of`` only, which returns one object for equal shapes: tables find it by
    identity.
    """

    request: Request
    constraints: PlacementConstraints
    images: tuple[str, ...] = ()
    """The image of each container, sorted. Empty if image locality has no weight."""


@lru_cache(maxsize=16_384)
def shape_of(request: Request, constraints: PlacementConstraints, *images: str) -> PodShape:
    return PodShape(request, constraints, images)


@dataclass(frozen=True, slots=True)
class ImpliedGroup:
    """A gang that annotations of its pods describe, in place of a PodGroup."""

    queue: str = DEFAULT_QUEUE
    min_member: int = 1
    min_resources: Request = ()


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod: its shape, its gang, and its node.

    Each step of a pod's life creates a new one. A msgspec struct is created several times as fast
    as a dataclass, and the garbage collector does not track it (``gc=False``: it is never part of a
    cycle).
    """

    key: PodKey
    uid: str
    shape: PodShape
    created: datetime = EPOCH
    priority: int = 0
    group: GroupKey | None = None
    implied_group: ImpliedGroup | None = None
    """The gang as its annotations describe it, if no PodGroup need exist."""
    role: str = ""
    node: NodeName | None = None
    phase: str = "Pending"
    is_terminating: bool = False
    is_gated: bool = False
    is_ours: bool = True
    """True if its schedulerName is one that this scheduler serves."""
    labels: tuple[tuple[str, str], ...] = ()
    preemptable: bool = True
    """True if the pod may be evicted for other pods."""
    device_claims: tuple[str, ...] = ()
    """Keys (``namespace/name``) of its ResourceClaims."""
    may_preempt: bool = True
    """True if other pods may be evicted for this pod."""
    claims: tuple[str, ...] = ()
    """Keys (``namespace/name``) of its PersistentVolumeClaims."""
    max_run_time_s: float = 0.0
    """Maximum run time in seconds; 0: unlimited."""
    belongs_to_job: bool = False
    """True if a Job of Kubernetes controls the pod: it ends some time, without a stated limit."""
    started_at: float = 0.0
    """Start time on its node, in seconds since the epoch; 0: not started."""
    quota_attributes: QuotaAttributes = DEFAULT_QUOTA_ATTRIBUTES
    is_expected: bool = False
    """True if the pod does not exist yet: it joins its gang when the other members run."""

    @property
    def gang_id(self) -> GangId:
        """Identity of its gang, or of the pod if it has none."""
        return GangId(self.group) if self.group is not None else single_pod_id(self.key)

    @property
    def is_finished(self) -> bool:
        return self.phase in TERMINAL_PHASES

    @property
    def may_run_forever(self) -> bool:
        """True if nothing ends the pod: it has no gang, no Job, no deadline, and is not ending."""
        return self.group is None and not (
            self.belongs_to_job or self.max_run_time_s or self.is_terminating
        )

    @property
    def holds_resources(self) -> bool:
        """True if the pod uses resources of its node, as the kubelet counts: until it has really
        ended.
        """
        return self.node is not None and not self.is_finished

    @property
    def is_pending(self) -> bool:
        """True if this scheduler has to place the pod."""
        return (
            self.is_ours
            and self.node is None
            and not (self.is_finished or self.is_terminating or self.is_gated)
        )


@dataclass(frozen=True, slots=True)
class PreviousNodes:
    """Nodes on which the pods of a restarting gang ran before. They are reserved for the gang."""

    expires_at: float
    """Expiry, in seconds since the epoch: afterwards any pod may use the nodes."""
    nodes: tuple[tuple[PodKey, NodeName], ...]


@dataclass(frozen=True, slots=True)
class RoleAffinity:
    """Which roles of a gang prefer to share nodes, and which prefer not to."""

    affinity: tuple[tuple[str, ...], ...] = ()
    anti_affinity: tuple[tuple[str, ...], ...] = ()
    """A single role: its pods are spread. Several roles: they avoid each other."""


@dataclass(frozen=True, slots=True)
class NetworkTopologyRule:
    """How close in the network the pods of a gang must be, or prefer to be."""

    hard: bool = True
    tier: int | None = None
    """Highest tier of a domain that holds the gang; None: any existing tier."""
    tier_name: str = ""
    label: str = ""
    """A node label, instead of tiers: nodes with one value of it are a domain."""


@dataclass(frozen=True, slots=True)
class SubgroupRule:
    """A subGroupPolicy: which pods form subgroups, their size, and the minimal count."""

    name: str
    selector: Selector
    size: int = 1
    min_subgroups: int = 0
    keys: tuple[str, ...] = ()
    """Pods with equal values of these labels form one subgroup."""
    network: NetworkTopologyRule | None = None


@dataclass(frozen=True, slots=True)
class HyperNodeMemberInfo:
    """Members of a network domain: domains or nodes, by name, pattern or labels."""

    hypernode: bool
    exact: str = ""
    pattern: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HyperNodeInfo:
    name: str
    tier: int
    tier_name: str = ""
    members: tuple[HyperNodeMemberInfo, ...] = ()


class EvictionMode(Enum):
    """Which pods of a running gang are evicted together."""

    MINIMUM = auto()
    """Pods beyond the minimum one by one, the others all together."""
    SINGLE = auto()
    """Each pod by itself."""
    ALL = auto()


@dataclass(frozen=True, slots=True)
class PodGroupInfo:
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
    joining: tuple[PodInfo, ...] = ()
    """Pods beyond the minimum that are created when the gang runs, and need their resources then.
    """
    previous_nodes: PreviousNodes | None = None
    preemptable: bool = True
    """True if its pods may be evicted for other pods."""
    role_affinity: RoleAffinity | None = None
    network: NetworkTopologyRule | None = None
    subgroups: tuple[SubgroupRule, ...] = ()
    max_run_time_s: float = 0.0
    """Maximum run time in seconds that the group states; 0: not stated."""
    run_time_estimate_s: float = 0.0
    """Learned run time in seconds, never a limit; 0: none."""
    checkpointed_at: float = 0.0
    """Time of its last checkpoint, in seconds since the epoch; 0: unknown."""
    is_admitted: bool = True
    """False if controllers must not create its pods yet: its phase is Pending."""
    waiting_time_s: float = 0.0
    """Seconds after which it is admitted and served first in its queue; 0: not stated."""
    evicted: EvictionMode = EvictionMode.MINIMUM
    has_queue_of_pods: bool = False
    """True if the queue is the one that its pods name, because the group names none."""

    @property
    def size(self) -> int:
        """The number of pods that ``min_resources`` is the sum of."""
        return self.min_member + len(self.joining)


@dataclass(frozen=True, slots=True)
class QueueInfo:
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
    protected_s: float = 0.0
    """Seconds for which its started gangs are not evicted; 0: not stated."""
    required_node_terms: tuple[RequiredNodeTerms, ...] = ()
    """Node terms that its pods must match."""
    preferred_node_terms: tuple[tuple[int, NodeTerm], ...] = ()
    """Node terms that its pods prefer, with weights."""


DeviceId = tuple[str, str, str]
"""Driver, pool and name of a device."""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """The devices of a ResourceClaim, and the nodes that reach all of them."""

    devices: tuple[tuple[str, DeviceId], ...]
    """Each with the name of its request."""
    terms: tuple[NodeTerm, ...] | None = None
    """None: all nodes."""


@dataclass(frozen=True, slots=True)
class PodEviction:
    """Part of a cycle's result: this pod is evicted for a gang."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None
    beneficiary: GangId
    """The gang that gets the resources."""
    reason: str
    """The rule that allows the eviction, as a text for people."""


class RefusedBinding(msgspec.Struct, frozen=True):
    """A pod whose last binding was refused: it is pending, and not tried until a time."""

    uid: str
    times: int
    """Number of refusals in a row."""
    until: float
    """Seconds since the epoch."""
    message: str
    """The refusal, for people."""


class PodBinding(msgspec.Struct, frozen=True, gc=False):
    """Part of a cycle's result: this pod runs on this node."""

    pod: PodKey
    uid: str
    node: NodeName
    group: GroupKey | None = None


class PendingReason(msgspec.Struct, frozen=True):
    """Why a gang, or a single pod, is pending: the text of conditions of the group and its pods."""

    reason: str
    """One of the CamelCase reasons in ``queueing.messages``."""
    message: str
    pods: tuple[tuple[PodKey, str], ...] = ()
    """Each pending pod with its own message in Kubernetes' wording."""
    group: GroupKey | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes reserved for a pending gang. A reservation stays the same until it can be used."""

    nodes: tuple[tuple[PodKey, NodeName], ...]
    preempting: bool = False
    """True if pods were evicted for it: then no other gang may use the nodes, whatever its order,
    except one to which the reservation gives way (``cycle.active_reservations``).
    """
    created_at: float = 0.0
    """Creation time in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of a cycle: bindings of complete gangs, evictions, reasons."""

    bindings: tuple[PodBinding, ...] = ()
    pending_reasons: tuple[PendingReason, ...] = ()
    admitted: frozenset[GroupKey] = frozenset()
    """Gangs without pods whose controllers may create them now."""
    placed: frozenset[GroupKey] = field(default_factory=frozenset)
    """Groups whose minimum is complete with these bindings."""
    evictions: tuple[PodEviction, ...] = ()
    """Pods to evict; victim sets are complete."""
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    """Reservations by the identity (``GangId``) of their gang."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Chosen volumes by claim of the bound pods; other unbound claims get provisioned ones."""
    devices: Mapping[str, ClaimAllocation] = field(default_factory=dict)
    """Chosen devices by ResourceClaim of the bound pods."""
    displaced: frozenset[GangId] = frozenset()
    """Gangs whose preempting reservation of an earlier cycle went to gangs that come before."""
    awaited: Mapping[PodKey, PodEviction] = field(default_factory=dict)
    """Terminating pods that preempting reservations need: the eviction for the present owner."""


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """A namespace's quota: its limits, its usage, and its scopes."""

    key: str
    hard: Request
    used: Request = ()
    scopes: tuple[QuotaScopeRule, ...] = ()
    """The quota counts pods that are in all of these scopes."""


@dataclass(frozen=True, slots=True)
class DisruptionBudgetInfo:
    key: str
    namespace: str
    selector: Selector
    allowed: int = 0

    def covers(self, pod: PodInfo) -> bool:
        """Return whether the budget selects the pod."""
        return pod.key.startswith(f"{self.namespace}/") and self.selector.matches(dict(pod.labels))
