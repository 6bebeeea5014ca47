"""Own writes that the watches do not show yet, like client-go's MutationCache.

Watches lag behind writes. A plan from a cache without the operator's own writes would create
objects twice, or, worse, treat a job as unfinished whose end is already stored. So the response to
each write is merged into the cached objects until the watch shows it, or until ``WATCH_TIMEOUT_S``
is over: an object that was deleted before the response arrived is never shown.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, TypeVar

from msgspec.structs import replace

from gangline.api.meta.objects import Object
from gangline.operator.model.job import RawJob

T = TypeVar("T", bound=Object)

WATCH_TIMEOUT_S = 30.0
"""Seconds after which a write is dropped although no watch has shown it."""


class UnobservedWrites(Generic[T]):
    """Objects of one kind that were recently created or deleted, by owner."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, dict[str, tuple[T, float]]] = defaultdict(dict)
        self._deleted: dict[str, float] = {}

    def record_created(self, item: T, cached: T | None) -> None:
        """Record an object that was created; ``cached`` is the cached object of that name."""
        if cached is None or cached.metadata.uid != item.metadata.uid:
            until = self._clock() + WATCH_TIMEOUT_S
            self._made[_owner(item)][item.metadata.name] = (item, until)

    def record_deleted(self, uid: str) -> None:
        now = self._clock()
        self._deleted[uid] = now + WATCH_TIMEOUT_S
        # The watch may show a deletion before its response arrives. Such an entry is never read
        # again, so each call drops at most two expired ones.
        for old in [uid for uid, until in islice(self._deleted.items(), 2) if until < now]:
            del self._deleted[old]

    def observe(self, old: T | None, new: T | None) -> bool:
        """Process a watch event; return False if it is only the echo of a recorded creation."""
        item = new or old
        if item is None:
            return False
        made = self._made.get(_owner(item), {})
        entry = made.get(item.metadata.name)
        written_version = ""
        if entry and entry[0].metadata.uid == item.metadata.uid:
            written_version = entry[0].metadata.resource_version
            del made[item.metadata.name]
            if not made:
                del self._made[_owner(item)]
        if new is None or new.metadata.deletion_timestamp is not None:
            self._deleted.pop(item.metadata.uid, None)
        return (
            new is None or not written_version or new.metadata.resource_version != written_version
        )

    def merge_into(self, owner: str, cached: list[T]) -> list[T]:
        now = self._clock()
        items = [self._with_deletion(item, now) for item in cached]
        uids = {item.metadata.uid for item in items}
        made = self._made.get(owner)
        if made:
            for name in [name for name, (_, until) in made.items() if until < now]:
                del made[name]
            fresh = (item for item, _ in made.values() if item.metadata.uid not in uids)
            items += [self._with_deletion(item, now) for item in fresh]
            if not made:
                del self._made[owner]
        return items

    def forget(self, owner: str) -> None:
        self._made.pop(owner, None)

    def has_unobserved(self, owner: str) -> bool:
        """Return whether the watch does not show yet all created objects of an owner."""
        return owner in self._made

    def _with_deletion(self, item: T, now: float) -> T:
        until = self._deleted.get(item.metadata.uid)
        if until is None or item.metadata.deletion_timestamp is not None:
            return item
        if until < now:
            del self._deleted[item.metadata.uid]
            return item
        meta = replace(item.metadata, deletion_timestamp=datetime.now(UTC))
        return replace(item, metadata=meta)


class WrittenStatuses:
    """Jobs as returned by the operator's latest writes of their status or metadata."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[RawJob, set[str]]] = {}

    def record_write(self, before: RawJob, after: RawJob) -> None:
        _, stale = self._written.get(before.metadata.uid, (None, set()))
        stale.add(before.metadata.resource_version)
        self._written[before.metadata.uid] = (after, stale)

    def latest(self, cached: RawJob) -> RawJob:
        """Return the latest known version of a job.

        A write carries the version it is based on, so no version lies between the two. A
        cached version that was overwritten is therefore stale; at any other version the cache has
        caught up.
        """
        after, stale = self._written.get(cached.metadata.uid, (None, set()))
        # Resource versions are opaque and have no order: compare with the overwritten ones only.
        if after is not None and cached.metadata.resource_version in stale:
            return after
        self._written.pop(cached.metadata.uid, None)
        return cached

    def forget(self, uid: str) -> None:
        self._written.pop(uid, None)


def _owner(item: Object) -> str:
    controller = item.metadata.controller
    return controller.uid if controller else ""
