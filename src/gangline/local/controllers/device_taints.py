"""Device taint controller: evicts pods that use a device with a NoExecute taint.

A taint is in the ResourceSlice of the device, or in a DeviceTaintRule that selects it. The
tolerations are those of the request, which the scheduler has copied into the allocation: a pod
leaves when the shortest ``tolerationSeconds`` of a taint have passed, immediately if its claim does
not tolerate it, and never if one toleration has no limit.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gangline.api.core.affinity import tolerates
from gangline.api.core.devices import (
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocatedDevice,
    DeviceTaint,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    ControllerContext,
    QueueLoop,
    current_time,
    enqueue_changes,
    evict_pod,
)
from gangline.local.limits import MAX_PERIOD_S

NO_EXECUTE = "NoExecute"
BY_POOL = "pool"


def taints_of(
    device: AllocatedDevice, slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]
) -> list[DeviceTaint]:
    """Return the NoExecute taints of a device; ``slices`` are those of its pool."""
    listed = list(slices)
    newest = max((one.spec.pool.generation for one in listed), default=0)
    taints = [
        taint
        for one in listed
        if one.spec.pool.generation == newest
        for published in one.spec.devices
        if published.name == device.device
        for taint in published.taints
    ]
    for rule in rules:
        selector = rule.spec.device_selector
        if selector is not None and all(
            wanted in ("", own)
            for wanted, own in (
                (selector.driver, device.driver),
                (selector.pool, device.pool),
                (selector.device, device.device),
            )
        ):
            taints.append(rule.spec.taint)
    return [taint for taint in taints if taint.effect == NO_EXECUTE]


def leaving_time(
    device: AllocatedDevice,
    taints: Iterable[DeviceTaint],
    since: Mapping[DeviceTaint, datetime],
    now: datetime,
) -> datetime | None:
    """Return when pods must leave a device with these NoExecute taints; None: they may stay.

    Args:
        since: when taints without a time were first seen; others of them are seen now.
    """
    leaving: list[datetime] = []
    for taint in taints:
        tolerating = [one for one in device.tolerations if tolerates(one, taint)]
        limits = [one.toleration_seconds for one in tolerating]
        if None in limits:
            continue
        stays_s = min(max(0, min((n for n in limits if n is not None), default=0)), MAX_PERIOD_S)
        leaving.append((taint.time_added or since.get(taint, now)) + timedelta(seconds=stays_s))
    return min(leaving, default=None)


class DeviceTaintController(QueueLoop):
    """One queue of claims that have devices."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._context = context
        informers = context.informers
        self._pods = informers.informer(PODS)
        self._claims = informers.informer(RESOURCE_CLAIMS)
        self._slices = informers.informer(
            RESOURCE_SLICES,
            indexes={BY_POOL: lambda one: [f"{one.spec.driver}/{one.spec.pool.name}"]},
        )
        self._rules = informers.informer(DEVICE_TAINT_RULES[0])
        self._since: dict[DeviceTaint, datetime] = {}
        """When the present taints without a time were first seen."""
        self._queue = self._add_queue("device taints", self._reconcile)
        self._claims.add_listener(enqueue_changes(self._queue))
        self._slices.add_listener(self._slice_changed)
        self._rules.add_listener(self._rule_changed)

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if any(
            taint.effect == NO_EXECUTE
            for one in (old, new)
            if one is not None
            for device in one.spec.devices
            for taint in device.taints
        ):
            self._check_all()

    def _rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if any(one.spec.taint.effect == NO_EXECUTE for one in (old, new) if one is not None):
            self._check_all()

    def _check_all(self) -> None:
        devices = [device for one in self._slices.items() for device in one.spec.devices]
        taints = [taint for device in devices for taint in device.taints]
        taints += [rule.spec.taint for rule in self._rules.items()]
        now = current_time()
        self._since = {
            taint: self._since.get(taint, now) for taint in taints if taint.time_added is None
        }
        for claim in self._claims.items():
            if claim.status.allocation is not None:
                self._queue.add(object_key(claim))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        claim = self._claims.get(key.namespace, key.name)
        leaves, now = self._leaving_time(claim), current_time()
        if claim is None or leaves is None:
            return None
        if leaves > now:
            return (leaves - now).total_seconds()
        for consumer in claim.status.reserved_for:
            pod = self._pods.get(key.namespace, consumer.name)
            if pod is not None and pod.metadata.uid == consumer.uid and _may_be_evicted(pod):
                name = claim.metadata.name
                message = f"a device of claim {name} has a taint that it does not tolerate"
                await evict_pod(self._context, pod, "DeviceTaintManager", message)
        return None

    def _leaving_time(self, claim: ResourceClaim | None) -> datetime | None:
        """Return when the pods of a claim must leave; None: they may stay."""
        if claim is None or claim.status.allocation is None:
            return None
        leaving: list[datetime] = []
        rules = list(self._rules.items())
        for device in claim.status.allocation.devices.results:
            slices = self._slices.by_index(BY_POOL, f"{device.driver}/{device.pool}")
            taints = taints_of(device, slices, rules)
            if (leaves := leaving_time(device, taints, self._since, current_time())) is not None:
                leaving.append(leaves)
        return min(leaving, default=None)


def _may_be_evicted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in TERMINAL_PHASES
