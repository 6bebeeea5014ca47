"""Volumes: which nodes a pod's claims allow, and which volume a claim gets on a node.

A bound claim restricts its pods to the nodes that reach its volume. A claim whose class waits for
the first consumer (``WaitForFirstConsumer``) restricts them to nodes with a matching free volume,
or where the class may provision one. Any other unbound claim keeps its pods pending. The messages
are kube-scheduler's.

A driver that publishes its capacity (CSIStorageCapacity) can provision a volume only for nodes of a
topology with enough capacity for all of it, as in kube-scheduler. Other drivers are assumed to have
capacity everywhere.
"""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from gangline.api.meta.selectors import EVERYTHING, Selector
from gangline.api.quantity import Quantity, QuantityFormat
from gangline.scheduler.plugins.filters import term_matches
from gangline.scheduler.types import (
    VOLUME_PREFIX,
    LabelExpression,
    NodeInfo,
    NodeName,
    NodeTerm,
    PodInfo,
    PodKey,
    Request,
    RequiredNodeTerms,
)


@dataclass(frozen=True, slots=True)
class StorageCapacityInfo:
    """The capacity of one storage class in one topology."""

    storage_class: str
    nodes: NodeTerm | None
    """Term of the nodes that reach it, an empty term for all nodes; None: no node."""
    max_volume_bytes: int | None
    """Size in bytes of the largest volume that can be provisioned; None: unknown."""

    def can_provision(self, storage_class: str, size: int) -> bool:
        fits = self.max_volume_bytes is not None and self.max_volume_bytes >= size
        return fits and self.storage_class == storage_class and self.nodes is not None


@dataclass(slots=True)
class StorageCapacities:
    """The published capacity of all drivers."""

    synced: bool = False
    """True once everything was read; until then, and without the kinds, no capacity is considered.
    """
    publishing_drivers: set[str] = field(default_factory=set)
    """Drivers that publish their capacity."""
    facts: dict[str, StorageCapacityInfo] = field(default_factory=dict)

    def terms(self, driver: str, storage_class: str, size: int) -> tuple[NodeTerm, ...] | None:
        """Return the terms of the nodes for which a volume can be provisioned; None: all nodes."""
        if not (self.synced and size and driver in self.publishing_drivers):
            return None
        node_terms = {
            capacity.nodes
            for capacity in self.facts.values()
            if capacity.can_provision(storage_class, size)
        }
        terms = [term for term in node_terms if term is not None]
        if NodeTerm() in terms:
            return None
        return tuple(sorted(terms, key=repr))


def capacity_message(storage_class: str, size: int) -> str:
    """Return the message of nodes without enough capacity, in Kubernetes' style."""
    needed = Quantity(size * 10**9, QuantityFormat.BINARY)
    return f"node(s) did not have enough free storage ({needed} free of class {storage_class!r})"


VOLUME_AFFINITY_CONFLICT = "node(s) had volume node affinity conflict"
NO_VOLUMES = "node(s) didn't find available persistent volumes to bind"
TOPOLOGY_NOT_ALLOWED = "node(s) did not have the topology that the storage class allows"
UNBOUND_IMMEDIATE_CLAIMS = "pod has unbound immediate PersistentVolumeClaims"
CLAIM_IN_USE = (
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class ClaimInfo:
    key: str
    """``namespace/name``."""
    uid: str = ""
    volume: str = ""
    """Name of its volume once the claim is bound."""
    is_prebound: bool = False
    """True if the claim names a volume that is not bound to it yet."""
    storage_class: str | None = None
    """None: the default class."""
    modes: frozenset[str] = frozenset()
    size: int = 0
    block: bool = False
    selector: Selector = EVERYTHING
    selected_node: str = ""
    """Node for which its volume is being provisioned."""
    is_terminating: bool = False
    """True while it is being deleted."""


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    name: str
    terms: tuple[NodeTerm, ...] | None = None
    """Terms of the nodes that reach it; None: all nodes."""
    storage_class: str = ""
    modes: frozenset[str] = frozenset()
    size: int = 0
    block: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    claim: str = ""
    """Key of the claim that the volume is bound to or reserved for; empty: it is free."""
    is_usable: bool = True
    driver: str = ""
    """CSI driver that attaches it; empty: none."""

    def is_reachable_from(self, node: NodeInfo) -> bool:
        labels = dict(node.labels)
        return self.terms is None or any(term_matches(t, labels, node.name) for t in self.terms)


@dataclass(frozen=True, slots=True)
class StorageClassInfo:
    name: str
    waits_for_consumer: bool = False
    """True if volumes are bound when the first pod uses the claim."""
    can_provision: bool = True
    allowed_terms: tuple[NodeTerm, ...] = ()
    """Terms of the nodes for which volumes may be provisioned; empty: all nodes."""
    is_default: bool = False
    driver: str = ""
    """CSI driver that provisions and attaches its volumes."""


@dataclass(frozen=True, slots=True)
class VolumeRequirements:
    """What a pod's claims require of its node."""

    required_node_terms: tuple[RequiredNodeTerms, ...] = ()
    request: Request = ()
    """Free volumes that the pod takes, as a request."""


@dataclass(frozen=True, slots=True)
class NodeAttachments:
    """Claims that a driver has attached to a node, with escaped names."""

    limit: int
    """Attach limit."""
    current: Set[str]
    lasting: Set[str]
    """The part that may never be detached."""


@dataclass(slots=True)
class StorageState:
    """All claims, volumes and classes, and which pods use which claims."""

    claims: dict[str, ClaimInfo] = field(default_factory=dict)
    volumes: dict[str, VolumeInfo] = field(default_factory=dict)
    classes: dict[str, StorageClassInfo] = field(default_factory=dict)
    synced: bool = False
    """True once everything was read; until then cycles ignore claims."""
    users: Counter[str] = field(default_factory=Counter)
    """Number of pods with a node by claim."""
    users_by_node: dict[NodeName, Counter[str]] = field(default_factory=dict)
    """The same by node."""
    lasting_by_node: dict[NodeName, Counter[str]] = field(default_factory=dict)
    """The same for pods that may never end."""
    capacities: StorageCapacities = field(default_factory=StorageCapacities)
    """Storage capacity for volumes that have to be provisioned."""
    limits: dict[NodeName, dict[str, int]] = field(default_factory=dict)
    """Attach limits by node and driver."""
    attached: dict[str, dict[NodeName, NodeAttachments]] = field(default_factory=dict)
    """Cached attachments by driver and node; dropped on every change."""
    waiting_pods: dict[str, set[PodKey]] = field(default_factory=dict)
    """Pending pods by claim."""

    def update_pod(self, pod: PodInfo, sign: int) -> None:
        """Count a pod as user of its claims (``sign`` -1: no longer)."""
        self.attached.clear()
        for claim in pod.claims:
            if pod.holds_resources and pod.node is not None:
                self.users[claim] += sign
                for users in (
                    (self.users_by_node, self.lasting_by_node)
                    if pod.may_run_forever
                    else (self.users_by_node,)
                ):
                    claim_users = users.setdefault(pod.node, Counter())
                    claim_users[claim] += sign
                    if not claim_users[claim]:
                        del claim_users[claim]
            elif sign > 0 and pod.is_pending:
                self.waiting_pods.setdefault(claim, set()).add(pod.key)
            elif sign < 0 and claim in self.waiting_pods:
                self.waiting_pods[claim].discard(pod.key)
                if not self.waiting_pods[claim]:
                    del self.waiting_pods[claim]

    def requirements(self, pod: PodInfo) -> VolumeRequirements:
        """Return what the claims of a pending pod require of its node."""
        if not self.synced:
            return VolumeRequirements()
        required: list[RequiredNodeTerms] = []
        taken: Counter[str] = Counter()
        for key in pod.claims:
            claim = self.claims.get(key)
            if why := self._blocking_message(pod, key, claim):
                return VolumeRequirements((RequiredNodeTerms((), why),))
            assert claim is not None
            required += self._required_node_terms(claim)
            if not claim.volume and not self._class_of(claim).can_provision:
                taken[volume_resource(claim)] += 1
        return VolumeRequirements(tuple(required), tuple(sorted(taken.items())))

    def count_free_volumes(
        self, pod: PodInfo, nodes: Iterable[NodeInfo]
    ) -> dict[str, dict[NodeName, int]]:
        """Return the number of matching free volumes on each node, by resource."""
        listed = list(nodes)
        counts: dict[str, dict[NodeName, int]] = {}
        for key in pod.claims:
            claim = self.claims.get(key)
            if claim is not None and not claim.volume:
                free = self._matching_volumes(claim)
                counts[volume_resource(claim)] = {
                    node.name: count
                    for node in listed
                    if (count := sum(volume.is_reachable_from(node) for volume in free))
                }
        return counts

    def provisioner(self, claim: ClaimInfo) -> str:
        return self._class_of(claim).driver

    def can_provision(self, claim: ClaimInfo) -> bool:
        return self._class_of(claim).can_provision

    def unbound_claims(self, pod: PodInfo) -> list[ClaimInfo]:
        claims = (self.claims.get(key) for key in pod.claims)
        return [claim for claim in claims if claim is not None and not claim.volume]

    def volume_for(self, claim: ClaimInfo, node: NodeInfo) -> VolumeInfo | None:
        """Return the smallest free volume for a claim that a node reaches; None: there is none."""
        fitting = [
            volume for volume in self._matching_volumes(claim) if volume.is_reachable_from(node)
        ]
        return min(
            fitting, key=lambda volume: (not volume.claim, volume.size, volume.name), default=None
        )

    def _blocking_message(self, pod: PodInfo, key: str, claim: ClaimInfo | None) -> str:
        """Return why a claim keeps its pod off all nodes; empty: it does not."""
        name = key.partition("/")[2]
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.is_terminating:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if claim.volume and claim.volume not in self.volumes:
            return (
                f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume '
                f'"{claim.volume}"'
            )
        if not claim.volume and (claim.is_prebound or not self._class_of(claim).waits_for_consumer):
            return UNBOUND_IMMEDIATE_CLAIMS
        if READ_WRITE_ONCE_POD in claim.modes:
            first = min(self.waiting_pods.get(key, {pod.key}))
            if self.users[key] or first != pod.key:
                return CLAIM_IN_USE
        return ""

    def _required_node_terms(self, claim: ClaimInfo) -> list[RequiredNodeTerms]:
        if claim.volume:
            terms = self.volumes[claim.volume].terms
            return [] if terms is None else [RequiredNodeTerms(terms, VOLUME_AFFINITY_CONFLICT)]
        storage_class = self._class_of(claim)
        if storage_class.can_provision and claim.selected_node:
            here = LabelExpression("metadata.name", "In", (claim.selected_node,))
            selected = RequiredNodeTerms((NodeTerm(fields=(here,)),), VOLUME_AFFINITY_CONFLICT)
            return [selected, *self._capacity_terms(claim, storage_class)]
        free = self._matching_volumes(claim)
        if any(volume.terms is None for volume in free):
            return []
        terms = tuple(term for volume in free for term in volume.terms or ())
        if not storage_class.can_provision:
            return [RequiredNodeTerms(terms, NO_VOLUMES)]
        required = (
            [RequiredNodeTerms((*terms, *storage_class.allowed_terms), TOPOLOGY_NOT_ALLOWED)]
            if storage_class.allowed_terms
            else []
        )
        return [*required, *self._capacity_terms(claim, storage_class, terms)]

    def _capacity_terms(
        self, claim: ClaimInfo, storage_class: StorageClassInfo, others: tuple[NodeTerm, ...] = ()
    ) -> list[RequiredNodeTerms]:
        """Return the terms of the nodes with capacity for a claim, and of ``others``."""
        terms = self.capacities.terms(storage_class.driver, storage_class.name, claim.size)
        if terms is None:
            return []
        return [
            RequiredNodeTerms((*others, *terms), capacity_message(storage_class.name, claim.size))
        ]

    def _class_of(self, claim: ClaimInfo) -> StorageClassInfo:
        name = claim.storage_class
        if name is None:
            name = min(
                (
                    storage_class.name
                    for storage_class in self.classes.values()
                    if storage_class.is_default
                ),
                default="",
            )
        return self.classes.get(name, StorageClassInfo(name, can_provision=False))

    def _matching_volumes(self, claim: ClaimInfo) -> list[VolumeInfo]:
        """Return the matching free volumes, or the one that is reserved for the claim."""
        class_name = self._class_of(claim).name
        return [
            volume
            for volume in self.volumes.values()
            if volume.is_usable
            and volume.claim in {"", claim.key}
            and volume.storage_class == class_name
            and volume.block == claim.block
            and claim.modes <= volume.modes
            and claim.size <= volume.size
            and claim.selector.matches(dict(volume.labels))
        ]


def volume_resource(claim: ClaimInfo) -> str:
    """Name the free volumes that match a claim; equivalent claims share the resource."""
    modes = "+".join(sorted(claim.modes))
    kind = "block" if claim.block else "files"
    chosen = str(claim.selector).replace("/", "|")  # a slash would make it a device
    return f"{VOLUME_PREFIX}{claim.storage_class}:{claim.size}:{modes}:{kind}:{chosen}"
