"""Volumes: which nodes a pod's claims allow, and which volumes a claim may get.

A bound claim restricts its pods to the nodes that reach its volume. A claim whose class waits for
the first consumer (``WaitForFirstConsumer``) restricts them to nodes with a matching free volume,
or where the class may provision one. Any other unbound claim keeps its pods pending. The messages
are kube-scheduler's.

These rules hold for each pod by itself, so that equal pods share their evaluation. What depends on
other pods is decided while they are placed (``placement.volume_matching``): claims that compete
for volumes, claims that several pods share, and ReadWriteOncePod.

A volume that is reserved for a claim (``claimRef``) is for this claim only, and the claim gets no
other one, as the cluster's volume controller decides it. A volume that a claim names
(``volumeName``) is for no other claim either. The choice of a cycle is assumed until the claim is
bound, so that the next cycle does not choose the volume again.

A driver that publishes its capacity (CSIStorageCapacity) can provision a volume only for nodes of a
topology with enough capacity for all of it, as in kube-scheduler. Unlike there, the volumes that a
cycle and the bindings in flight take from one capacity are added up. Other drivers are assumed to
have capacity everywhere.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from gangline.api.meta.selectors import EVERYTHING, Selector
from gangline.api.quantity import Quantity, QuantityFormat
from gangline.scheduler.plugins.filters import term_matches
from gangline.scheduler.types import (
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
    total_bytes: int | None = None
    """Bytes for all further volumes together; None: unknown, so that they are not added up."""

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
        if not self.limits(driver, size):
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

    def limits(self, driver: str, size: int) -> bool:
        """Return whether a volume of a driver needs published capacity."""
        return bool(self.synced and size and driver in self.publishing_drivers)

    def sources(self, storage_class: str, size: int, node: NodeInfo) -> dict[str, int | None]:
        """Return the capacities from which a volume can be provisioned for a node, and their bytes
        for all further volumes.
        """
        labels = dict(node.labels)
        return {
            name: capacity.total_bytes
            for name, capacity in sorted(self.facts.items())
            if capacity.can_provision(storage_class, size)
            and capacity.nodes is not None
            # An empty term stands for all nodes here.
            and (capacity.nodes == NodeTerm() or term_matches(capacity.nodes, labels, node.name))
        }


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
_MODES_OF_MANY_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})


@dataclass(frozen=True, slots=True)
class ClaimInfo:
    key: str
    """``namespace/name``."""
    uid: str = ""
    volume: str = ""
    """Name of its volume once the claim is bound."""
    requested_volume: str = ""
    """Volume that the claim names and is not bound to yet."""
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

    @property
    def is_for_one_pod(self) -> bool:
        return READ_WRITE_ONCE_POD in self.modes

    @property
    def is_for_many_nodes(self) -> bool:
        """True if nodes other than the one it is provisioned for are expected to reach it."""
        return not _MODES_OF_MANY_NODES.isdisjoint(self.modes)


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
    claim_uid: str = ""
    """Uid of this claim; empty: any claim of the name."""
    is_usable: bool = True
    driver: str = ""
    """CSI driver that attaches it; empty: none."""

    def is_reachable_from(self, node: NodeInfo) -> bool:
        labels = dict(node.labels)
        return self.terms is None or any(term_matches(t, labels, node.name) for t in self.terms)

    def is_reserved_for(self, claim: ClaimInfo) -> bool:
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)

    def can_hold(self, claim: ClaimInfo) -> bool:
        """Return whether it is large enough for a claim, and of its mode."""
        return self.is_usable and self.block == claim.block and claim.size <= self.size


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
    """Attachments that the pod takes, as a request."""


@dataclass(frozen=True, slots=True)
class AssumedVolume:
    """What a cycle has chosen for a claim that is not bound yet."""

    volume: str
    """Name of a free volume; empty: a volume is provisioned for the node."""
    node: NodeName
    """The node of the first pod that uses the claim."""


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
    assumed: dict[str, AssumedVolume] = field(default_factory=dict)
    """What earlier cycles have chosen for claims of pods that are being bound."""
    _matched: dict[tuple[str, ...], tuple[ClaimInfo, ...]] = field(default_factory=dict)
    """Cached results of ``matched_claims``."""
    _index: "_VolumeIndex | None" = None

    def update_pod(self, pod: PodInfo, sign: int) -> None:
        """Count a pod as user of its claims (``sign`` -1: no longer)."""
        self.attached.clear()
        self._matched.clear()
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

    def invalidate(self) -> None:
        """Drop what was derived from claims, volumes, classes and their users."""
        self.attached.clear()
        self._matched.clear()
        self._index = None

    def assume(self, pod: PodInfo, node: NodeName, volumes: Mapping[str, str]) -> bool:
        """Assume what a cycle has chosen for the unbound claims of a pod on its node.

        Args:
            volumes: chosen volumes by claim; the others are provisioned.

        Returns:
            Whether the pod has such claims.
        """
        new = [claim.key for claim in self.unbound_claims(pod) if claim.key not in self.assumed]
        for key in new:
            self.assumed[key] = AssumedVolume(volumes.get(key, ""), node)
        return bool(new)

    def drop_unused_assumptions(self, pod: PodInfo) -> bool:
        """Drop what is assumed for claims of a pod that no pod with a node uses any more; return
        whether anything was.
        """
        unused = [key for key in pod.claims if key in self.assumed and not self.users[key]]
        for key in unused:
            del self.assumed[key]
        return bool(unused)

    def bind_assumed(self) -> None:
        """Bind all claims as assumed: what the cluster's controllers will do."""
        for key, assumed in self.assumed.items():
            claim = self.claims.get(key)
            if claim is None or claim.volume:
                continue
            volume = self.volumes.get(assumed.volume)
            if volume is None:
                here = LabelExpression("metadata.name", "In", (assumed.node,))
                terms = None if claim.is_for_many_nodes else (NodeTerm(fields=(here,)),)
                driver = self.provisioner(claim)
                volume = VolumeInfo(f"provisioned for {key}", terms, driver=driver)
            self.volumes[volume.name] = replace(volume, claim=key, claim_uid=claim.uid)
            self.claims[key] = replace(claim, volume=volume.name)
        self.assumed.clear()
        self.invalidate()

    def requirements(self, pod: PodInfo) -> VolumeRequirements:
        """Return what the claims of a pending pod require of its node."""
        if not self.synced:
            return VolumeRequirements()
        required: list[RequiredNodeTerms] = []
        for key in pod.claims:
            claim = self.claims.get(key)
            if why := self._blocking_message(key, claim):
                return VolumeRequirements((RequiredNodeTerms((), why),))
            assert claim is not None
            required += self._required_node_terms(claim)
        return VolumeRequirements(tuple(required))

    def matched_claims(self, claims: tuple[str, ...]) -> tuple[ClaimInfo, ...]:
        """Return those claims of a pod whose volumes depend on other pods (see the module)."""
        matched = self._matched.get(claims)
        if matched is None:
            infos = (self.claims.get(key) for key in claims) if self.synced else ()
            matched = self._matched[claims] = tuple(
                claim for claim in infos if claim is not None and self._depends_on_others(claim)
            )
        return matched

    def _depends_on_others(self, claim: ClaimInfo) -> bool:
        pods = self._count_pods(claim)
        if claim.is_for_one_pod and pods > 1:
            return True
        if claim.volume or claim.key in self.assumed:
            return False
        if self.candidates(claim) or not self.can_provision(claim) or self.is_limited(claim):
            return True
        return pods > 1 and not claim.is_for_many_nodes

    def needs_volume(self, claim: ClaimInfo) -> bool:
        """Return whether no volume was bound to a claim, or chosen for it in an earlier cycle."""
        return not claim.volume and claim.key not in self.assumed

    def provisioner(self, claim: ClaimInfo) -> str:
        return self._class_of(claim).driver

    def can_provision(self, claim: ClaimInfo) -> bool:
        return self._class_of(claim).can_provision

    def is_limited(self, claim: ClaimInfo) -> bool:
        """Return whether a volume that is provisioned for a claim takes published capacity."""
        return self.capacities.limits(self._class_of(claim).driver, claim.size)

    def capacity_sources(self, claim: ClaimInfo, node: NodeInfo) -> Mapping[str, int | None]:
        """Return ``StorageCapacities.sources`` for a claim."""
        return self.capacities.sources(self._class_of(claim).name, claim.size, node)

    def no_volume_message(self, claim: ClaimInfo) -> str:
        """Return the message of nodes where a claim can have no volume beside others."""
        if self.can_provision(claim) and self.is_limited(claim):
            return capacity_message(self._class_of(claim).name, claim.size)
        return NO_VOLUMES

    def unbound_claims(self, pod: PodInfo) -> list[ClaimInfo]:
        claims = (self.claims.get(key) for key in pod.claims)
        return [claim for claim in claims if claim is not None and not claim.volume]

    def candidates(self, claim: ClaimInfo) -> Sequence[VolumeInfo]:
        """Return the volumes that an unbound claim may get, the smallest first.

        A volume that is reserved for the claim is the only one, as for the volume controller. A
        claim with a selected node waits for the provisioner.
        """
        index = self._volume_index()
        volumes = index.candidates.get(claim.key)
        if volumes is None:
            storage_class = self._class_of(claim)
            selected = claim.selected_node or claim.key in self.assumed
            if claim.key in index.reserved:
                volumes = index.reserved[claim.key]
            elif selected and storage_class.can_provision:
                volumes = []
            else:
                volumes = index.matching_volumes(claim, storage_class.name)
            index.candidates[claim.key] = volumes
        return volumes

    def volume_kind(self, claim: ClaimInfo) -> object:
        """Return a key by which claims get equal volumes; that of a shared claim is its own."""
        if self._count_pods(claim) > 1 or self._reserved_volumes(claim):
            return claim.key
        kind = (claim.storage_class, claim.size, claim.modes, claim.block, claim.selector)
        return (*kind, claim.selected_node)

    def _count_pods(self, claim: ClaimInfo) -> int:
        return self.users[claim.key] + len(self.waiting_pods.get(claim.key, ()))

    def may_provision(self, claim: ClaimInfo, node: NodeInfo) -> bool:
        """Return whether a volume for an unbound claim may be provisioned for a node."""
        storage_class = self._class_of(claim)
        if not storage_class.can_provision or self._reserved_volumes(claim):
            return False
        labels = dict(node.labels)
        return all(
            any(term_matches(term, labels, node.name) for term in required.terms)
            for required in self._provisioning_terms(claim, storage_class)
        )

    def _blocking_message(self, key: str, claim: ClaimInfo | None) -> str:
        """Return why a claim keeps its pods off all nodes; empty: it does not."""
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
        waits = self._class_of(claim).waits_for_consumer and not claim.requested_volume
        return "" if claim.volume or waits else UNBOUND_IMMEDIATE_CLAIMS

    def _required_node_terms(self, claim: ClaimInfo) -> list[RequiredNodeTerms]:
        assumed = self.assumed.get(claim.key)
        volume = self.volumes.get(claim.volume or (assumed.volume if assumed else ""))
        if volume is not None:
            terms = volume.terms
            return [] if terms is None else [RequiredNodeTerms(terms, VOLUME_AFFINITY_CONFLICT)]
        storage_class = self._class_of(claim)
        free = self.candidates(claim)
        if any(volume.terms is None for volume in free):
            return []
        terms = tuple(term for volume in free for term in volume.terms or ())
        if not storage_class.can_provision or self._reserved_volumes(claim):
            return [RequiredNodeTerms(terms, NO_VOLUMES)]
        return [
            replace(required, terms=(*terms, *required.terms))
            for required in self._provisioning_terms(claim, storage_class)
        ]

    def _provisioning_terms(
        self, claim: ClaimInfo, storage_class: StorageClassInfo
    ) -> list[RequiredNodeTerms]:
        """Return the terms of the nodes for which a volume may be provisioned."""
        assumed = self.assumed.get(claim.key)
        selected = assumed.node if assumed is not None else claim.selected_node
        shared = self._count_pods(claim) > 1
        required: list[RequiredNodeTerms] = []
        if selected and not (shared and claim.is_for_many_nodes):
            here = LabelExpression("metadata.name", "In", (selected,))
            required.append(
                RequiredNodeTerms((NodeTerm(fields=(here,)),), VOLUME_AFFINITY_CONFLICT)
            )
        elif storage_class.allowed_terms:
            required.append(RequiredNodeTerms(storage_class.allowed_terms, TOPOLOGY_NOT_ALLOWED))
        capacity = self.capacities.terms(storage_class.driver, storage_class.name, claim.size)
        if capacity is not None:
            message = capacity_message(storage_class.name, claim.size)
            required.append(RequiredNodeTerms(capacity, message))
        return required

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
        return self.classes.get(name) or StorageClassInfo(name, can_provision=False)

    def _reserved_volumes(self, claim: ClaimInfo) -> Sequence[VolumeInfo]:
        """Return the volumes that are reserved for an unbound claim and can hold it."""
        return self._volume_index().reserved.get(claim.key, ())

    def _volume_index(self) -> "_VolumeIndex":
        if self._index is None:
            requested = {
                claim.requested_volume for claim in self.claims.values() if not claim.volume
            }
            taken = requested | {assumed.volume for assumed in self.assumed.values()}
            self._index = _VolumeIndex({}, {}, {}, {})
            for volume in sorted(self.volumes.values(), key=lambda v: (v.size, v.name)):
                owner = self.claims.get(volume.claim)
                if owner is not None and volume.is_reserved_for(owner):
                    if not owner.volume and volume.can_hold(owner):
                        self._index.reserved.setdefault(owner.key, []).append(volume)
                elif volume.is_usable and not volume.claim and volume.name not in taken:
                    kind = volume.storage_class, volume.block
                    self._index.free.setdefault(kind, []).append(volume)
        return self._index


@dataclass(frozen=True, slots=True)
class _VolumeIndex:
    """The volumes that unbound claims may get, the smallest first."""

    reserved: dict[str, list[VolumeInfo]]
    """By the claim that a volume is reserved for."""
    free: dict[tuple[str, bool], list[VolumeInfo]]
    """By class and mode (block or files)."""
    candidates: dict[str, list[VolumeInfo]]
    """By claim, as far as they were asked for."""
    matching: dict[tuple[object, ...], list[VolumeInfo]]
    """Free volumes by all that a claim asks for; equal claims share the list."""

    def matching_volumes(self, claim: ClaimInfo, storage_class: str) -> list[VolumeInfo]:
        kind = (storage_class, claim.block, claim.size, claim.modes, claim.selector)
        volumes = self.matching.get(kind)
        if volumes is None:
            volumes = self.matching[kind] = [
                volume
                for volume in self.free.get((storage_class, claim.block), ())
                if volume.can_hold(claim)
                and claim.modes <= volume.modes
                and claim.selector.matches(dict(volume.labels))
            ]
        return volumes
