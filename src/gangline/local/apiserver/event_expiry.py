"""Deletion of events: after their time to live, or earlier if there are too many.

In Kubernetes the API server stores each event with a lease of etcd, which begins again with each
write. Here the server records the order of the writes, so that expired events are found without a
scan. Events are also limited in number: a cluster that runs many short jobs would otherwise store
an hour of them in memory. The namespace with the most events loses its oldest one first, so that
one user's events do not displace those of others.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime

from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent

EVENTS_STORAGE_NAME = "events."
INTERVAL_S = 5.0
MAX_DELETIONS_PER_STEP = 100
"""Deletions between two pauses, so that requests are served meanwhile."""
TIME_FIELDS = ("lastTimestamp", "eventTime")


class EventExpiry:
    """Deletes events of a store. It must be created before the first request is served."""

    def __init__(self, store: ObjectStore, *, time_to_live_s: float, max_events: int) -> None:
        self._store = store
        self._cache = store.cache(EVENTS_STORAGE_NAME)
        self._time_to_live_s = time_to_live_s
        self._max_events = max_events
        self._written: dict[str, OrderedDict[str, float]] = {}
        """The monotonic time of the last write of each key, oldest first, by namespace."""
        self._count = 0
        self._load()
        store.add_listener(EVENTS_STORAGE_NAME, self._on_change)

    async def run(self) -> None:
        """Delete events until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            for number, key in enumerate(self._due(), 1):
                self._delete(key)
                if number % MAX_DELETIONS_PER_STEP == 0:
                    await asyncio.sleep(0)

    def _load(self) -> None:
        ages = ((_age_s(record.body), key) for key, record in self._cache.records.items())
        now = time.monotonic()
        for age, key in sorted(ages, reverse=True):
            self._record_write(key, now - age)

    def _on_change(self, event: CacheEvent) -> None:
        key = event.record.key
        self._forget(key)
        if event.type != DELETED:
            self._record_write(key, time.monotonic())

    def _record_write(self, key: str, at: float) -> None:
        self._written.setdefault(_namespace(key), OrderedDict())[key] = at
        self._count += 1

    def _forget(self, key: str) -> None:
        namespace = _namespace(key)
        times = self._written.get(namespace)
        if times is not None and times.pop(key, None) is not None:
            self._count -= 1
            if not times:
                del self._written[namespace]

    def _due(self) -> Iterator[str]:
        """Yield the keys to delete, and forget them."""
        oldest = time.monotonic() - self._time_to_live_s
        for times in list(self._written.values()):
            while times and (key := next(iter(times))) and times[key] < oldest:
                self._forget(key)
                yield key
        while self._count > self._max_events:
            times = max(self._written.values(), key=len)
            key = next(iter(times))
            self._forget(key)
            yield key

    def _delete(self, key: str) -> None:
        record = self._cache.latest(key)
        if record is not None:
            obj = read_json(record.body)
            self._store.stage(self._cache, key, obj, (record.labels, record.fields), removed=True)


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _age_s(body: bytes) -> float:
    """Return the seconds since an event was last reported."""
    event = read_json(body)
    fields = [event.get(name) for name in TIME_FIELDS]
    text = next((text for text in fields if text), event["metadata"].get("creationTimestamp"))
    try:
        return max(0.0, time.time() - datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return 0.0
