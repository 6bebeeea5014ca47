"""Keeps ``status.used`` of quotas current: deletions, ended pods, and changed limits.

Creations update the status themselves. Every other change of a namespace with a quota is followed
by a computation of all of its use, soon after.
"""

import asyncio

from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.quota.admission import with_status
from gangline.local.apiserver.quota.ledger import QUOTAS, QuotaLedger
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent

DELAY_S = 0.1
"""Changes of this time are followed by one computation."""


class QuotaStatusSync:
    """Writes the status of quotas. It must be created before the first request is served."""

    def __init__(self, store: ObjectStore, ledger: QuotaLedger) -> None:
        self._store = store
        self._ledger = ledger
        self._limited = ledger.namespaces()
        self._changed = set(self._limited)
        self._wake = asyncio.Event()
        if self._changed:
            self._wake.set()
        store.add_observer(self._on_change)

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(DELAY_S)
            self._wake.clear()
            changed, self._changed = self._changed, set()
            for namespace in changed:
                self._update(namespace)
                await asyncio.sleep(0)

    def _on_change(self, topic: str, event: CacheEvent) -> None:
        namespace = event.record.key.partition("/")[0]
        if topic == QUOTAS:
            self._limited.add(namespace)
        elif not self._limited or namespace not in self._limited:
            return
        self._changed.add(namespace)
        self._wake.set()

    def _update(self, namespace: str) -> None:
        cache = self._store.cache(QUOTAS)
        quotas = self._ledger.quotas(namespace)
        if not quotas:
            self._limited.discard(namespace)
            self._ledger.forget(namespace)
        for quota in quotas:
            obj = with_status(quota, self._ledger.used(quota, quota.hard))
            if obj["status"] != read_json(quota.record.body).get("status"):
                index = (quota.record.labels, quota.record.fields)
                self._store.stage(cache, quota.key, obj, index)
