"""Informers of optional CSI kinds: attach limits (CSINode) and storage capacity
(CSIStorageCapacity).
"""

from collections.abc import Callable

from gangline.kube.client import ApiClient
from gangline.kube.informer import Informer
from gangline.scheduler.observe_storage import capacity_info, publishes_capacity
from gangline.scheduler.state import SchedulerCache
from gangline.scheduler.wire import (
    CSI_DRIVERS,
    BETA_STORAGE_CAPACITIES,
    STORAGE_CAPACITIES,
    CSIDriver,
    CSIStorageCapacity,
)


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
