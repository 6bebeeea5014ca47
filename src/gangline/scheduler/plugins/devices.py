"""Devices of Dynamic Resource Allocation: what claims request, and which devices they may get.

A claim has requests. Each is for some, or all, devices of a device class that its selectors match
and whose taints it tolerates; or it lists alternatives, of which the first possible one counts.
Constraints compare attributes of the devices of a claim. A device has at most one claim; all pods
that share a claim run on nodes that reach all of its devices.

Two rules work together:

1. The devices of a class are an amount of each node (``class_resource``), and a pod requests the
   sum of its claims. So queues, preemption, reservations and messages treat them like any other
   resource. A claim that pods share is charged to one of them, its payer. The amounts never exclude
   a node that could do: devices that several classes select count in each of them.
2. ``placement.device_matching`` gives each claim its devices while pods are placed.

Only complete pools count, in their newest generation, as in kube-scheduler. A claim whose consumers
are all pending pods of this scheduler has no devices yet: what a failed binding has left in its
status is overwritten.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from gangline.api.core.affinity import tolerates
from gangline.api.core.devices import MAX_CONSUMERS
from gangline.scheduler.plugins.device_selectors import (
    DeviceSelectorError,
    SelectableDevice,
    parse_selector,
)
from gangline.scheduler.plugins.filters import term_matches
from gangline.scheduler.types import (
    ClaimAllocation,
    DeviceId,
    LabelExpression,
    NodeInfo,
    NodeName,
    NodeTerm,
    PodInfo,
    PodKey,
    RequiredNodeTerms,
    TaintInfo,
    TolerationInfo,
    shape_of,
)

CLASS_SUFFIX = ".deviceclass.resource.k8s.io/devices"
"""Kubernetes' suffix of the devices of a class, in quotas."""
IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Start of the extended resource that stands for a class without a claim, followed by its name."""
CANNOT_ALLOCATE = "cannot allocate all claims"
NOT_ON_NODE = "resourceclaim not available on the node"
UNCREATED = "?"
"""Start of the name of a claim that does not exist yet, followed by the pod's name for it."""
_REPELLING = frozenset({"NoSchedule", "NoExecute"})

PoolId = tuple[str, str]
"""Driver and name."""


def class_resource(device_class: str) -> str:
    """Return the resource that the devices of a class count as."""
    return f"{device_class}{CLASS_SUFFIX}"


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Which devices a request may get. Equal filters share one evaluation."""

    device_class: str
    selectors: tuple[str, ...] = ()
    tolerations: tuple[TolerationInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOption:
    """One alternative of a request."""

    name: str
    """``request``, or ``request/alternative``."""
    devices: DeviceFilter
    count: int = 1
    """0: all devices that the filter selects."""
    is_admin: bool = False
    """True if it gets devices that others may have, and keep (``adminAccess``)."""


@dataclass(frozen=True, slots=True)
class DeviceRequestInfo:
    name: str
    options: tuple[RequestOption, ...]


@dataclass(frozen=True, slots=True)
class AttributeConstraint:
    """An attribute in which devices are equal, or all different."""

    attribute: str
    """``domain/name``."""
    requests: frozenset[str] = frozenset()
    """Names of requests or alternatives; empty: all."""
    distinct: bool = False

    def applies_to(self, option: str) -> bool:
        names = self.requests
        return not names or option in names or option.partition("/")[0] in names


@dataclass(frozen=True, slots=True)
class DeviceClaimInfo:
    key: str
    """``namespace/name``."""
    uid: str = ""
    requests: tuple[DeviceRequestInfo, ...] = ()
    constraints: tuple[AttributeConstraint, ...] = ()
    owner: str = ""
    """Uid of the pod that it was created for; empty: pods may share it."""
    allocation: ClaimAllocation | None = None
    consumers: tuple[tuple[str, str], ...] = ()
    """Keys and uids of the pods for which it is reserved; other objects have no key."""
    is_terminating: bool = False
    unsupported: str = ""
    """What this scheduler does not support; empty: nothing."""

    def options(self) -> Iterator[RequestOption]:
        for request in self.requests:
            yield from request.options

    def taken(self, allocation: ClaimAllocation) -> Iterator[DeviceId]:
        """Return the devices of an allocation that no other claim may have."""
        admin = {option.name for option in self.options() if option.is_admin}
        return (device for name, device in allocation.devices if name not in admin)

    def amounts(self) -> Mapping[str, int]:
        """Return the least number of devices of each class that the claim takes."""
        totals: dict[str, int] = defaultdict(int)
        taken = [name for name, _ in self.allocation.devices] if self.allocation else []
        for request in self.requests:
            options = tuple(option for option in request.options if not option.is_admin)
            if taken:
                options = tuple(option for option in options if option.name in taken)
            classes = {option.devices.device_class for option in options}
            if len(classes) == 1:
                least = min(taken.count(o.name) if taken else max(1, o.count) for o in options)
                totals[class_resource(classes.pop())] += least
        return totals


@dataclass(frozen=True, slots=True, eq=False)
class DeviceInfo:
    id: DeviceId
    view: SelectableDevice
    node: NodeName | None = None
    """The node that it is part of; None: ``terms`` decide."""
    terms: tuple[NodeTerm, ...] | None = None
    """Terms of the nodes that reach it; None: all nodes."""
    taints: tuple[TaintInfo, ...] = ()
    unsupported: str = ""
    """Why this scheduler gives it to no claim; empty: it does."""

    def attribute(self, name: str) -> object:
        """Return a key of the value of a qualified attribute; None: it has none."""
        domain, _, own = name.rpartition("/")
        value = self.view.attributes.get(domain, {}).get(own)
        return None if value is None else (type(value), value)

    def is_reached_from(self, node: NodeInfo) -> bool:
        if self.node is not None:
            return self.node == node.name
        labels = dict(node.labels)
        return self.terms is None or any(term_matches(t, labels, node.name) for t in self.terms)

    def node_terms(self) -> tuple[NodeTerm, ...] | None:
        """Return the terms of the nodes that reach it; None: all nodes."""
        if self.node is None:
            return self.terms
        return (NodeTerm(fields=(LabelExpression("metadata.name", "In", (self.node,)),)),)


@dataclass(frozen=True, slots=True)
class SliceInfo:
    pool: PoolId
    generation: int
    slices: int
    """Number of slices of the pool."""
    devices: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTaintRuleInfo:
    """A taint of all devices of a driver, pool and name; an empty name selects all."""

    taint: TaintInfo
    driver: str = ""
    pool: str = ""
    device: str = ""

    def selects(self, device: DeviceId) -> bool:
        wanted = (self.driver, self.pool, self.device)
        return all(not name or name == own for name, own in zip(wanted, device, strict=True))


def joint_terms(devices: Iterable[DeviceInfo]) -> tuple[NodeTerm, ...] | None:
    """Return the terms of the nodes that reach all of these devices; None: all nodes."""
    joint: tuple[NodeTerm, ...] | None = None
    for terms in dict.fromkeys(device.node_terms() for device in devices):
        if joint is None or terms is None:
            joint = joint if terms is None else terms
        else:
            joint = tuple(
                NodeTerm((*one.labels, *two.labels), (*one.fields, *two.fields))
                for one in joint
                for two in terms
            )
    return joint


class DeviceState:
    """All claims, classes, devices and taint rules, and which pods use which claims."""

    def __init__(self) -> None:
        self.synced = False
        """True once everything was read; until then pods with claims are refused."""
        self.claims: dict[str, DeviceClaimInfo] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        """Selectors by device class."""
        self.extended: dict[str, str] = {}
        """Device classes by the extended resource that stands for them without a claim."""
        self.rules: dict[str, DeviceTaintRuleInfo] = {}
        self.assumed: dict[str, ClaimAllocation] = {}
        """What cycles have chosen for claims of pods that are being bound."""
        self.users: dict[str, dict[PodKey, PodInfo]] = {}
        """Pods that name each claim, whether pending or not."""
        self.pending_users = 0
        """Number of pending pods with claims."""
        self._slices: dict[PoolId, dict[str, SliceInfo]] = {}
        self._pools_of: dict[NodeName | None, set[PoolId]] = {}
        """Pools with devices of a node; None: pools with devices that several nodes reach."""
        self._devices: dict[PoolId, tuple[DeviceInfo, ...]] = {}
        """Usable devices, as far as they were asked for."""
        self._selected: dict[DeviceFilter, dict[PoolId, tuple[DeviceInfo, ...]]] = {}
        self._holders: dict[DeviceId, str] | None = None
        self._only_unsupported: dict[DeviceFilter, str] = {}

    def copy_to(self, other: "DeviceState") -> None:
        """Make another state, without pods, equal to this one."""
        other.synced, other.claims, other.classes = self.synced, dict(self.claims), self.classes
        other.rules, other.assumed = self.rules, dict(self.assumed)
        other.extended = self.extended
        other._slices, other._pools_of = self._slices, self._pools_of
        other._selected = self._selected

    def set_slice(
        self, name: str, former: SliceInfo | None, new: SliceInfo | None
    ) -> set[NodeName | None]:
        """Add, change or remove a slice.

        Returns:
            The nodes of the devices in its pool; None for devices that several nodes reach.
        """
        nodes: set[NodeName | None] = set()
        for pool in {info.pool for info in (former, new) if info is not None}:
            slices = self._slices.setdefault(pool, {})
            before = {device.node for info in slices.values() for device in info.devices}
            slices.pop(name, None)
            if new is not None and new.pool == pool:
                slices[name] = new
            after = {device.node for info in slices.values() for device in info.devices}
            for node in before - after:
                self._pools_of[node].discard(pool)
            for node in after:
                self._pools_of.setdefault(node, set()).add(pool)
            if not slices:
                del self._slices[pool]
            nodes |= before | after
            self._devices.pop(pool, None)
            for selected in self._selected.values():
                selected.pop(pool, None)
        self._only_unsupported.clear()
        return nodes

    def set_class(self, name: str, selectors: tuple[str, ...] | None, extended: str = "") -> bool:
        """Add, change or remove (None) a class; return whether that is a change.

        Args:
            extended: the extended resource that stands for it without a claim.
        """
        others = {one: owner for one, owner in self.extended.items() if owner != name}
        stands = others | ({extended: name} if extended else {})
        if selectors == self.classes.get(name) and stands == self.extended:
            return False
        self.extended = stands
        if selectors is None:
            self.classes.pop(name, None)
        else:
            self.classes[name] = selectors
        return True

    def class_of(self, resource: str) -> str:
        """Return the class that an extended resource stands for; empty: none."""
        if resource.startswith(IMPLICIT_RESOURCE):
            return resource.removeprefix(IMPLICIT_RESOURCE)
        return self.extended.get(resource, "")

    def invalidate_classes(self) -> None:
        """Drop what was derived from classes and taint rules."""
        self._selected.clear()
        self._only_unsupported.clear()

    def invalidate_claims(self) -> None:
        """Drop what was derived from claims and their users."""
        self._holders = None

    def set_claim(self, key: str, claim: DeviceClaimInfo | None) -> None:
        """Add, change or remove (None) a claim."""
        if claim is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = claim
            if claim.allocation == self.assumed.get(key):
                self.assumed.pop(key, None)
        self.invalidate_claims()

    def update_pod(self, pod: PodInfo, sign: int) -> None:
        """Count a pod as user of its claims (``sign`` -1: no longer)."""
        self.invalidate_claims()
        self.pending_users += sign * pod.is_pending
        for claim in pod.device_claims:
            if sign > 0:
                self.users.setdefault(claim, {})[pod.key] = pod
                continue
            self.users.get(claim, {}).pop(pod.key, None)
            if not self.users.get(claim):
                self.users.pop(claim, None)

    def assume(self, chosen: Mapping[str, ClaimAllocation]) -> None:
        """Assume what a cycle has chosen for claims of pods that it binds."""
        self.assumed |= chosen
        self.invalidate_claims()

    def drop_unused_assumptions(self, pod: PodInfo) -> None:
        """Drop what is assumed for claims of a pod that no pod with a node uses any more."""
        for claim in pod.device_claims:
            if claim in self.assumed and not any(self.placed_users(claim)):
                del self.assumed[claim]
                self.invalidate_claims()

    def release_unused(self) -> None:
        """Take all devices from claims without a pod on a node, as the cluster's controller does;
        what is assumed for the others becomes theirs.
        """
        for key, claim in self.claims.items():
            kept = self.assumed.get(key, claim.allocation)
            kept = kept if any(self.placed_users(key)) else None
            if kept != claim.allocation or claim.consumers:
                self.claims[key] = replace(claim, allocation=kept, consumers=())
        self.assumed.clear()
        self.invalidate_claims()

    def placed_users(self, claim: str) -> Iterator[PodInfo]:
        """Return the pods with a node that use a claim."""
        return (pod for pod in self.users.get(claim, {}).values() if pod.holds_resources)

    def allocation_of(self, key: str) -> ClaimAllocation | None:
        """Return the devices that a claim has, or is about to get; None: none yet."""
        claim = self.claims.get(key)
        if claim is None or key in self.assumed:
            return self.assumed.get(key)
        return None if self._is_left_over(claim) else claim.allocation

    def _is_left_over(self, claim: DeviceClaimInfo) -> bool:
        """Return whether only pending pods of this scheduler have reserved a claim."""
        users = self.users.get(claim.key, {})
        pods = [(users.get(PodKey(key)), uid) for key, uid in claim.consumers]
        return bool(pods) and all(
            pod is not None and pod.uid == uid and pod.is_pending for pod, uid in pods
        )

    def holders(self) -> Mapping[DeviceId, str]:
        """Return the claims of all devices that have one."""
        if self._holders is None:
            self._holders = {
                device: key
                for key, claim in self.claims.items()
                if (allocation := self.allocation_of(key)) is not None
                for device in claim.taken(allocation)
            }
        return self._holders

    def unallocated(self, pod: PodInfo) -> list[DeviceClaimInfo]:
        """Return the claims of a pod that have no devices yet."""
        infos = (self.claims.get(key) for key in pod.device_claims)
        return [c for c in infos if c is not None and self.allocation_of(c.key) is None]

    def claim_kind(self, claim: DeviceClaimInfo) -> object:
        """Return a key by which claims get equal devices; that of a shared claim is its own."""
        if len(self.users.get(claim.key, ())) > 1:
            return claim.key
        return (claim.requests, claim.constraints)

    def kinds(self, pod: PodInfo) -> tuple[object, ...]:
        """Return the kinds of the claims of a pod that have no devices yet."""
        return tuple(map(self.claim_kind, self.unallocated(pod))) if pod.device_claims else ()

    def _payer(self, claim: str, user: PodInfo) -> PodKey | None:
        """Return the pod that the devices of a claim are charged to; ``user`` may be new."""
        users = {**self.users.get(claim, {}), user.key: user}
        live = [pod for pod in users.values() if not pod.is_finished]
        first = min(live, key=lambda pod: (pod.node is None, pod.created, pod.key), default=None)
        return None if first is None else first.key

    def charge(self, pod: PodInfo) -> PodInfo:
        """Return a pod whose request includes the devices that are charged to it."""
        own = [entry for entry in pod.shape.request if not entry[0].endswith(CLASS_SUFFIX)]
        request = tuple(sorted((*own, *self._amounts(pod).items())))
        shape = shape_of(request, pod.shape.constraints, *pod.shape.images)
        return pod if shape is pod.shape else structs.replace(pod, shape=shape)

    def _amounts(self, pod: PodInfo) -> Mapping[str, int]:
        totals: dict[str, int] = defaultdict(int)
        for key in pod.device_claims:
            claim = self.claims.get(key)
            if claim is not None and self._payer(key, pod) == pod.key:
                for resource, amount in claim.amounts().items():
                    totals[resource] += amount
        return totals

    def with_amounts(self, node: NodeInfo) -> NodeInfo:
        """Return a node with the devices of each class that it reaches as amounts."""
        own = [entry for entry in node.allocatable if not entry[0].endswith(CLASS_SUFFIX)]
        if self._slices:
            reached = [d for pool in self._pools(node.name) for d in self._newest(pool)]
            reached = [d for d in reached if d.is_reached_from(node) and not d.unsupported]
            for name in self.classes:
                select = self._class_predicate(name)
                if count := sum(select(device.view) for device in reached if select):
                    own.append((class_resource(name), count))
        allocatable = tuple(sorted(own))
        return node if allocatable == node.allocatable else replace(node, allocatable=allocatable)

    def unsupported(self, pod: PodInfo) -> str:
        """Return what the claims of a pod need and is not supported; empty: nothing."""
        if not self.synced:
            return "resource.k8s.io/v1 is not served, or this scheduler may not read it"
        for key in pod.device_claims:
            claim = self.claims.get(key)
            if claim is None:
                continue
            if why := (
                claim.unsupported
                or self._unsupported_selector(claim)
                or self._unsupported_devices(claim)
            ):
                return f"claim {key.partition('/')[2]!r}: {why}"
        return ""

    def missing(self, pod: PodInfo) -> str:
        """Return which of its claims do not exist yet; empty: all exist."""
        for key in pod.device_claims:
            name = key.partition("/")[2]
            if name.startswith(UNCREATED):
                return (
                    f"Claim {name[1:]!r} of pod {pod.key} was not created yet: the cluster's "
                    "controller creates it from its ResourceClaimTemplate."
                )
            if key not in self.claims:
                return f"ResourceClaim {key} does not exist: create it."
        return ""

    def _unsupported_selector(self, claim: DeviceClaimInfo) -> str:
        for option in claim.options():
            name = option.devices.device_class
            in_class = [(f"class {name!r}", one) for one in self.classes.get(name, ())]
            own = [(f"request {option.name!r}", one) for one in option.devices.selectors]
            for owner, expression in (*in_class, *own):
                try:
                    parse_selector(expression)
                except DeviceSelectorError as error:
                    return f"selector {expression!r} of {owner}: {error}"
        return ""

    def _unsupported_devices(self, claim: DeviceClaimInfo) -> str:
        """Return why a request can only have devices that are given to no claim; empty: there are
        others, or none at all.
        """
        if self.allocation_of(claim.key) is not None:
            return ""
        for request in claim.requests:
            reasons = [self._unsupported_selection(option.devices) for option in request.options]
            if reasons and all(reasons):
                return f"the devices that request {request.name!r} selects {reasons[0]}"
        return ""

    def _unsupported_selection(self, devices: DeviceFilter) -> str:
        why = self._only_unsupported.get(devices)
        if why is None:
            selects = self._predicate(devices)
            matching = (d for pool in self._slices for d in self._newest(pool) if selects(d))
            reasons = [device.unsupported for device in matching]
            why = reasons[0] if reasons and all(reasons) else ""
            self._only_unsupported[devices] = why
        return why

    def requirements(self, pod: PodInfo) -> tuple[RequiredNodeTerms, ...]:
        """Return what the claims of a pending pod require of its node."""
        required: list[RequiredNodeTerms] = []
        for key in pod.device_claims:
            if why := self._blocking_message(key, pod):
                return (RequiredNodeTerms((), why),)
            allocation = self.allocation_of(key)
            if allocation is not None and allocation.terms is not None:
                required.append(RequiredNodeTerms(allocation.terms, NOT_ON_NODE))
        return tuple(required)

    def _blocking_message(self, key: str, pod: PodInfo) -> str:
        """Return why a claim keeps its pod off all nodes, in Kubernetes' wording; empty: it does
        not.
        """
        name, claim = key.partition("/")[2], self.claims.get(key)
        if claim is None:
            return f'resourceclaim "{name}" not found'
        if claim.is_terminating:
            return f'resourceclaim "{name}" is being deleted'
        if claim.owner and claim.owner != pod.uid:
            return f'resourceclaim "{name}" was not created for the pod'
        uids = [uid for _, uid in claim.consumers]
        if len(uids) >= MAX_CONSUMERS and pod.uid not in uids:
            return f'resourceclaim "{name}" is in use by {MAX_CONSUMERS} pods, the most allowed'
        for request in claim.requests:
            for option in request.options:
                if option.devices.device_class not in self.classes:
                    class_name = option.devices.device_class
                    return f"request {option.name}: device class {class_name} does not exist"
        return ""

    def selected(self, devices: DeviceFilter, node: NodeInfo) -> list[DeviceInfo]:
        """Return the devices that a request may get on a node, whether they are free or not."""
        by_pool = self._selected.setdefault(devices, {})
        chosen: list[DeviceInfo] = []
        for pool in self._pools(node.name):
            if pool not in by_pool:
                by_pool[pool] = tuple(filter(self._predicate(devices), self._usable(pool)))
            chosen += [device for device in by_pool[pool] if device.is_reached_from(node)]
        return chosen

    def device(self, device: DeviceId) -> DeviceInfo | None:
        return next((info for info in self._newest(device[:2]) if info.id == device), None)

    def _pools(self, node: NodeName) -> list[PoolId]:
        return sorted(self._pools_of.get(node, set()) | self._pools_of.get(None, set()))

    def _newest(self, pool: PoolId) -> Sequence[DeviceInfo]:
        """Return the devices of the newest generation of a pool, complete or not."""
        slices = self._slices.get(pool, {})
        newest = max((info.generation for info in slices.values()), default=0)
        return [
            device
            for _, info in sorted(slices.items())
            if info.generation == newest
            for device in info.devices
        ]

    def _usable(self, pool: PoolId) -> tuple[DeviceInfo, ...]:
        """Return the devices of a complete pool; of others, none."""
        devices = self._devices.get(pool)
        if devices is None:
            listed = self._newest(pool)
            infos = self._slices.get(pool, {}).values()
            newest = max((info.generation for info in infos), default=0)
            current = [info for info in infos if info.generation == newest]
            is_complete = all(info.slices == len(current) for info in current)
            is_valid = len({device.id for device in listed}) == len(listed)
            devices = self._devices[pool] = (
                tuple(device for device in listed if not device.unsupported)
                if is_complete and is_valid
                else ()
            )
        return devices

    def _predicate(self, devices: DeviceFilter) -> Callable[[DeviceInfo], bool]:
        in_class = self._class_predicate(devices.device_class)
        matches = _all_of(devices.selectors)
        if in_class is None or matches is None:
            return lambda _: False

        def selects(device: DeviceInfo) -> bool:
            taints = [*device.taints]
            taints += [rule.taint for rule in self.rules.values() if rule.selects(device.id)]
            return (
                in_class(device.view)
                and matches(device.view)
                and all(
                    taint.effect not in _REPELLING
                    or any(tolerates(toleration, taint) for toleration in devices.tolerations)
                    for taint in taints
                )
            )

        return selects

    def _class_predicate(self, name: str) -> Callable[[SelectableDevice], bool] | None:
        """Return whether a device is in a class, as a function; None: that is not supported."""
        return _all_of(self.classes[name]) if name in self.classes else None


def _all_of(expressions: Iterable[str]) -> Callable[[SelectableDevice], bool] | None:
    try:
        selectors = [parse_selector(expression) for expression in expressions]
    except DeviceSelectorError:
        return None
    return partial(_selected_by_all, selectors)


def _selected_by_all(
    selectors: Iterable[Callable[[SelectableDevice], bool]], device: SelectableDevice
) -> bool:
    return all(selects(device) for selects in selectors)
