"""What this operator has written and its watches have not shown yet.

Watches lag behind writes. Deciding from a cache that lacks one's own writes would create what has
just been created, and, worse, could take a job for unfinished whose end has just been stored. So
each write's answer is laid over the cache until the watch has caught up, or until it plainly never
will (the object was gone again before the answer came).
"""

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, TypeVar

from msgspec.structs import replace

from gangline.api.meta import Object
from gangline.operator.stored import StoredJob

T = TypeVar("T", bound=Object)

PATIENCE_S = 30.0
"""How long a watch is given to show a write."""


class RecentObjects(Generic[T]):
    """Objects of one kind that were lately made or deleted for jobs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, dict[str, tuple[T, float]]] = defaultdict(dict)
        self._deleted: dict[str, float] = {}

    def made(self, item: T, seen: T | None) -> None:
        """Note an object that the server has stored; ``seen`` is what the cache has of its name."""
        if seen is None or seen.metadata.uid != item.metadata.uid:
            until = self._clock() + PATIENCE_S
            self._made[_owner(item)][item.metadata.name] = (item, until)

    def deleted(self, uid: str) -> None:
        """Note that the server has accepted an object's deletion."""
        now = self._clock()
        self._deleted[uid] = now + PATIENCE_S
        # The watch may have shown it before the answer came: nobody will ask for that one again.
        for old in [uid for uid, until in islice(self._deleted.items(), 2) if until < now]:
            del self._deleted[old]

    def shown(self, old: T | None, new: T | None) -> bool:
        """Hear from the watch; return whether it is news, and no echo of what was made."""
        item = new or old
        if item is None:
            return False
        made = self._made.get(_owner(item), {})
        entry = made.get(item.metadata.name)
        known = ""
        if entry and entry[0].metadata.uid == item.metadata.uid:
            known = entry[0].metadata.resource_version
            del made[item.metadata.name]
            if not made:
                del self._made[_owner(item)]
        if new is None or new.metadata.deletion_timestamp is not None:
            self._deleted.pop(item.metadata.uid, None)
        return new is None or not known or new.metadata.resource_version != known

    def over(self, owner: str, cached: list[T]) -> list[T]:
        """Lay what was written over what the cache has of an owner's objects."""
        now = self._clock()
        items = [self._marked(item, now) for item in cached]
        known = {item.metadata.uid for item in items}
        made = self._made.get(owner)
        if made:
            for name in [name for name, (_, until) in made.items() if until < now]:
                del made[name]
            fresh = (item for item, _ in made.values() if item.metadata.uid not in known)
            items += [self._marked(item, now) for item in fresh]
            if not made:
                del self._made[owner]
        return items

    def forget(self, owner: str) -> None:
        """Forget the objects of an owner that is gone."""
        self._made.pop(owner, None)

    def pending(self, owner: str) -> bool:
        """Say whether the watch still owes something about an owner's objects."""
        return owner in self._made

    def _marked(self, item: T, now: float) -> T:
        until = self._deleted.get(item.metadata.uid)
        if until is None or item.metadata.deletion_timestamp is not None:
            return item
        if until < now:
            del self._deleted[item.metadata.uid]
            return item
        meta = replace(item.metadata, deletion_timestamp=datetime.now(UTC))
        return replace(item, metadata=meta)


class RecentStatus:
    """Jobs as they were after this operator last wrote their status."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[StoredJob, set[str]]] = {}

    def written(self, before: StoredJob, after: StoredJob) -> None:
        """Note that a write has turned ``before`` into ``after``."""
        _, stale = self._written.get(before.metadata.uid, (None, set()))
        stale.add(before.metadata.resource_version)
        self._written[before.metadata.uid] = (after, stale)

    def newest(self, cached: StoredJob) -> StoredJob:
        """Return the job as it is known best.

        A status write names the version it is based on, so that no version lies between the two:
        a cache at a version that was written over is stale, at any other it has caught up.
        """
        after, stale = self._written.get(cached.metadata.uid, (None, set()))
        if after is not None and cached.metadata.resource_version in stale:
            return after
        self._written.pop(cached.metadata.uid, None)
        return cached

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._written.pop(uid, None)


def _owner(item: Object) -> str:
    controller = item.metadata.controller
    return controller.uid if controller else ""
