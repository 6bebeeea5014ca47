"""Volumes: which nodes a pod's claims allow, and which volume a claim gets on a node.

A bound claim restricts its pods to the nodes that reach its volume. A claim whose class waits for
the first consumer (``WaitForFirstConsumer``) restricts them to nodes with a matching free volume,
or where the class may provision one. Any other unbound claim keeps its pods pending. The messages
are kube-scheduler's.
"""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from gangline.api.selectors import EVERYTHING, Selector
from gangline.scheduler.capacity import Capacities, too_little
from gangline.scheduler.model import (
    VOLUME,
    Expression,
    Fence,
    NodeFacts,
    NodeName,
    NodeTerm,
    PodFacts,
    PodKey,
    Request,
)
from gangline.scheduler.plugins.node_filters import matches

CONFLICT = "node(s) had volume node affinity conflict"
NO_VOLUMES = "node(s) didn't find available persistent volumes to bind"
NOT_ALLOWED = "node(s) did not have the topology that the storage class allows"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
IN_USE = (
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)
ONCE_PER_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    key: str
    """``namespace/name``."""
    uid: str = ""
    volume: str = ""
    """Name of its volume once the claim is bound."""
    promised: bool = False
    """True if the claim names a volume that is not bound to it yet."""
    storage_class: str | None = None
    """None: the default class."""
    modes: frozenset[str] = frozenset()
    size: int = 0
    block: bool = False
    selector: Selector = EVERYTHING
    selected: str = ""
    """Node for which its volume is being provisioned."""
    going: bool = False
    """True while it is being deleted."""


@dataclass(frozen=True, slots=True)
class VolumeFacts:
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
    usable: bool = True
    driver: str = ""
    """CSI driver that attaches it; empty: none."""

    def reached_by(self, node: NodeFacts) -> bool:
        labels = dict(node.labels)
        return self.terms is None or any(matches(t, labels, node.name) for t in self.terms)


@dataclass(frozen=True, slots=True)
class ClassFacts:
    name: str
    waits: bool = False
    """True if volumes are bound when the first pod uses the claim."""
    provisions: bool = True
    terms: tuple[NodeTerm, ...] = ()
    """Terms of the nodes for which volumes may be provisioned; empty: all nodes."""
    default: bool = False
    driver: str = ""
    """CSI driver that provisions and attaches its volumes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pod's claims require of its node."""

    fences: tuple[Fence, ...] = ()
    request: Request = ()
    """Free volumes that the pod takes, as a request."""


@dataclass(frozen=True, slots=True)
class AttachedThere:
    """Claims that a driver has attached to a node, with escaped names."""

    most: int
    """Attach limit."""
    now: Set[str]
    lasting: Set[str]
    """The part that may never be detached."""


@dataclass(slots=True)
class Storage:
    """All claims, volumes and classes, and which pods use which claims."""

    claims: dict[str, ClaimFacts] = field(default_factory=dict)
    volumes: dict[str, VolumeFacts] = field(default_factory=dict)
    classes: dict[str, ClassFacts] = field(default_factory=dict)
    known: bool = False
    """True once everything was read; until then cycles ignore claims."""
    holding: Counter[str] = field(default_factory=Counter)
    """Number of pods with a node by claim."""
    on_node: dict[NodeName, Counter[str]] = field(default_factory=dict)
    """The same by node."""
    staying: dict[NodeName, Counter[str]] = field(default_factory=dict)
    """The same for pods without a gang, which may never end."""
    capacities: Capacities = field(default_factory=Capacities)
    """Storage capacity for volumes that have to be provisioned."""
    limits: dict[NodeName, dict[str, int]] = field(default_factory=dict)
    """Attach limits by node and driver."""
    attached: dict[str, dict[NodeName, AttachedThere]] = field(default_factory=dict)
    """Cached attachments by driver and node; dropped on every change."""
    waiting: dict[str, set[PodKey]] = field(default_factory=dict)
    """Pending pods by claim."""

    def note(self, pod: PodFacts, sign: int) -> None:
        """Count a pod as user of its claims (``sign`` -1: no longer)."""
        self.attached.clear()
        for claim in pod.claims:
            if pod.holds_room and pod.node is not None:
                self.holding[claim] += sign
                for users in (self.on_node, self.staying) if pod.group is None else (self.on_node,):
                    there = users.setdefault(pod.node, Counter())
                    there[claim] += sign
                    if not there[claim]:
                        del there[claim]
            elif sign > 0 and pod.waits:
                self.waiting.setdefault(claim, set()).add(pod.key)
            elif sign < 0 and claim in self.waiting:
                self.waiting[claim].discard(pod.key)
                if not self.waiting[claim]:
                    del self.waiting[claim]

    def needs(self, pod: PodFacts) -> Needs:
        """Return what the claims of a pending pod require of its node."""
        if not self.known:
            return Needs()
        fences: list[Fence] = []
        taken: Counter[str] = Counter()
        for key in pod.claims:
            claim = self.claims.get(key)
            if why := self._refused(pod, key, claim):
                return Needs((Fence((), why),))
            assert claim is not None
            fences += self._fences(claim)
            if not claim.volume and not self._class_of(claim).provisions:
                taken[resource_of(claim)] += 1
        return Needs(tuple(fences), tuple(sorted(taken.items())))

    def supply(self, pod: PodFacts, nodes: Iterable[NodeFacts]) -> dict[str, dict[NodeName, int]]:
        """Return the number of matching free volumes on each node, by resource."""
        listed = list(nodes)
        found: dict[str, dict[NodeName, int]] = {}
        for key in pod.claims:
            claim = self.claims.get(key)
            if claim is not None and not claim.volume:
                free = self._fitting(claim)
                found[resource_of(claim)] = {
                    node.name: count
                    for node in listed
                    if (count := sum(volume.reached_by(node) for volume in free))
                }
        return found

    def provisioner(self, claim: ClaimFacts) -> str:
        return self._class_of(claim).driver

    def provisions(self, claim: ClaimFacts) -> bool:
        return self._class_of(claim).provisions

    def pending(self, pod: PodFacts) -> list[ClaimFacts]:
        """Return the claims of a pod that have no volume yet."""
        found = (self.claims.get(key) for key in pod.claims)
        return [claim for claim in found if claim is not None and not claim.volume]

    def volume_for(self, claim: ClaimFacts, node: NodeFacts) -> VolumeFacts | None:
        """Return the smallest free volume for a claim that a node reaches; None: there is none."""
        fitting = [volume for volume in self._fitting(claim) if volume.reached_by(node)]
        return min(fitting, key=lambda each: (not each.claim, each.size, each.name), default=None)

    def _refused(self, pod: PodFacts, key: str, claim: ClaimFacts | None) -> str:
        """Return why a claim keeps its pod off all nodes; empty: it does not."""
        name = key.partition("/")[2]
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.going:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if claim.volume and claim.volume not in self.volumes:
            return (
                f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume '
                f'"{claim.volume}"'
            )
        if not claim.volume and (claim.promised or not self._class_of(claim).waits):
            return UNBOUND
        if ONCE_PER_POD in claim.modes:
            first = min(self.waiting.get(key, {pod.key}))
            if self.holding[key] or first != pod.key:
                return IN_USE
        return ""

    def _fences(self, claim: ClaimFacts) -> list[Fence]:
        if claim.volume:
            terms = self.volumes[claim.volume].terms
            return [] if terms is None else [Fence(terms, CONFLICT)]
        made_by = self._class_of(claim)
        if made_by.provisions and claim.selected:
            here = Expression("metadata.name", "In", (claim.selected,))
            there = Fence((NodeTerm(fields=(here,)),), CONFLICT)
            return [there, *self._room_for(claim, made_by)]
        free = self._fitting(claim)
        if any(volume.terms is None for volume in free):
            return []
        terms = tuple(term for volume in free for term in volume.terms or ())
        if not made_by.provisions:
            return [Fence(terms, NO_VOLUMES)]
        fences = [Fence((*terms, *made_by.terms), NOT_ALLOWED)] if made_by.terms else []
        return [*fences, *self._room_for(claim, made_by, terms)]

    def _room_for(
        self, claim: ClaimFacts, made_by: ClassFacts, others: tuple[NodeTerm, ...] = ()
    ) -> list[Fence]:
        """Return the terms of the nodes with capacity for a claim, and of ``others``."""
        terms = self.capacities.terms(made_by.driver, made_by.name, claim.size)
        if terms is None:
            return []
        return [Fence((*others, *terms), too_little(made_by.name, claim.size))]

    def _class_of(self, claim: ClaimFacts) -> ClassFacts:
        name = claim.storage_class
        if name is None:
            name = min((each.name for each in self.classes.values() if each.default), default="")
        return self.classes.get(name, ClassFacts(name, provisions=False))

    def _fitting(self, claim: ClaimFacts) -> list[VolumeFacts]:
        """Return the matching free volumes, or the one that is reserved for the claim."""
        class_name = self._class_of(claim).name
        return [
            volume
            for volume in self.volumes.values()
            if volume.usable
            and volume.claim in {"", claim.key}
            and volume.storage_class == class_name
            and volume.block == claim.block
            and claim.modes <= volume.modes
            and claim.size <= volume.size
            and claim.selector.matches(dict(volume.labels))
        ]


def resource_of(claim: ClaimFacts) -> str:
    """Name the free volumes that match a claim; equivalent claims share the resource."""
    modes = "+".join(sorted(claim.modes))
    kind = "block" if claim.block else "files"
    chosen = str(claim.selector).replace("/", "|")  # a slash would make it a device
    return f"{VOLUME}{claim.storage_class}:{claim.size}:{modes}:{kind}:{chosen}"
