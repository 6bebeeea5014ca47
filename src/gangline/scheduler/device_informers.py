"""Informers of Dynamic Resource Allocation. A cluster may not serve the kinds."""

from collections.abc import Callable, Sequence

from gangline.api.core.devices import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceConfiguration,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gangline.api.meta.objects import Object
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert_devices import (
    device_claim_info,
    device_class_info,
    slice_info,
    taint_rule_info,
)
from gangline.scheduler.plugins.devices import SliceInfo


class DeviceInformers:
    """Keeps claims, classes, devices and taint rules in the cache current.

    Args:
        changed: called when the next cycle may have another result.
    """

    def __init__(
        self, client: ApiClient, state: SchedulerCache, changed: Callable[[], None]
    ) -> None:
        self._state, self._changed = state, changed
        self.claims: Informer[ResourceClaim] = Informer(client, RESOURCE_CLAIMS, from_cache=True)
        self.classes: Informer[DeviceClass] = Informer(client, DEVICE_CLASSES)
        self.slices: Informer[ResourceSlice] = Informer(client, RESOURCE_SLICES, from_cache=True)
        self.taint_rules: tuple[Informer[DeviceTaintRule], ...] = tuple(
            Informer(client, version) for version in DEVICE_TAINT_RULES
        )
        """One informer per version, the newest first: a cluster serves one of them, or none."""
        self._slice_infos: dict[str, SliceInfo] = {}
        self.claims.add_listener(self._on_claim)
        self.classes.add_listener(self._on_class)
        self.slices.add_listener(self._on_slice)
        for informer in self.taint_rules:
            informer.add_listener(self._on_taint_rule)

    def start_using(self) -> None:
        """Make cycles allocate devices: everything has been read."""
        self._state.devices.synced = True
        self._devices_changed()

    def configuration(self, device_class: str) -> Sequence[DeviceConfiguration]:
        """Return what the devices of a class are configured with."""
        found = self.classes.get("", device_class)
        return found.spec.config if found is not None else ()

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        metadata = _present(old, new).metadata
        key = f"{metadata.namespace}/{metadata.name}"
        info = device_claim_info(new) if new is not None else None
        if info != self._state.devices.claims.get(key):
            self._state.set_device_claim(key, info)
            self._changed()

    def _on_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        name, devices = _present(old, new).metadata.name, self._state.devices
        extended = new.spec.extended_resource_name if new is not None else ""
        if devices.set_class(name, device_class_info(new) if new is not None else None, extended):
            self._devices_changed()

    def _on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        name, info = _present(old, new).metadata.name, slice_info(new) if new is not None else None
        nodes = self._state.devices.set_slice(name, self._slice_infos.pop(name, None), info)
        if info is not None:
            self._slice_infos[name] = info
        self._state.devices_changed(nodes)
        self._changed()

    def _on_taint_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        rules, name = self._state.devices.rules, _present(old, new).metadata.name
        info = taint_rule_info(new) if new is not None else None
        if info is None:
            rules.pop(name, None)
        elif rules.get(name) == info:
            return
        else:
            rules[name] = info
        self._devices_changed()

    def _devices_changed(self) -> None:
        self._state.devices.invalidate_classes()
        self._state.devices_changed((None,))
        self._changed()


def _present(old: Object | None, new: Object | None) -> Object:
    present = new or old
    assert present is not None
    return present
