"""Informer of CSINode: how many volumes each node can attach."""

from collections.abc import Callable

from gangline.kube.client import ApiClient
from gangline.kube.informer import Informer
from gangline.scheduler.model import NodeName
from gangline.scheduler.observe_storage import attach_limits
from gangline.scheduler.state import SchedulerCache
from gangline.scheduler.wire import CSI_NODES, CSINode


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
        self.informer: Informer[CSINode] = Informer(client, CSI_NODES)
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
