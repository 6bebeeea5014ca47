"""Informers of optional CSI kinds: CSINode (attach limits), CSIStorageCapacity, CSIDriver."""

from collections.abc import Callable

from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert_storage import (
    attach_limits,
    capacity_info,
    publishes_capacity,
)
from gangline.scheduler.types.types import NodeName
from gangline.scheduler.types.wire import (
    BETA_STORAGE_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CAPACITIES,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
)


class CSINodeInformer:
    """Keeps attach limits in the cache current.

    Args:
        client: the API client.
        state: the cache.
        changed: called when the next cycle may have another result.
    """

    def __init__(
        self, client: ApiClient, state: SchedulerCache, changed: Callable[[], None]
    ) -> None:
        self._state, self._changed = state, changed
        self.informer: Informer[CSINode] = Informer(client, CSI_NODES, from_cache=True)
        self.informer.add_listener(self._on_node)

    def _on_node(self, old: CSINode | None, new: CSINode | None) -> None:
        known = new or old
        assert known is not None
        name = NodeName(known.metadata.name)
        limits = attach_limits(new) if new is not None else {}
        if limits == self._state.storage.limits.get(name, {}):
            return
        if limits:
            self._state.storage.limits[name] = limits
        else:
            del self._state.storage.limits[name]
        self._state.storage_changed()
        self._changed()


class StorageCapacityInformers:
    """Keeps storage capacity in the cache current.

    Args:
        client: the API client.
        state: the cache.
        changed: called when the next cycle may have another result.
    """

    def __init__(
        self, client: ApiClient, state: SchedulerCache, changed: Callable[[], None]
    ) -> None:
        self._state, self._changed = state, changed
        self._capacities = state.storage.capacities
        self.drivers: Informer[CSIDriver] = Informer(client, CSI_DRIVERS)
        self.drivers.add_listener(self._on_driver)
        self.versions: tuple[Informer[CSIStorageCapacity], ...] = (
            Informer(client, STORAGE_CAPACITIES),
            Informer(client, BETA_STORAGE_CAPACITIES),
        )
        """One informer per version, the newest first: a cluster serves one of them, or none."""
        for informer in self.versions:
            informer.add_listener(self._on_capacity)

    def start_using(self) -> None:
        """Make cycles consider storage capacity: everything has been read."""
        self._capacities.synced = True
        self._notify()

    def _on_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        known = new or old
        assert known is not None
        name = known.metadata.name
        now = new is not None and publishes_capacity(new)
        if now == (name in self._capacities.publishing_drivers):
            return
        if now:
            self._capacities.publishing_drivers.add(name)
        else:
            self._capacities.publishing_drivers.discard(name)
        self._notify()

    def _on_capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        known = new or old
        assert known is not None
        key = f"{known.metadata.namespace}/{known.metadata.name}"
        facts = capacity_info(new) if new is not None else None
        if facts == self._capacities.facts.get(key):
            return
        if facts is not None:
            self._capacities.facts[key] = facts
        else:
            del self._capacities.facts[key]
        self._notify()

    def _notify(self) -> None:
        if self._capacities.synced:
            self._state.storage_changed()
            self._changed()
