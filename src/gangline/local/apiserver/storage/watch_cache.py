"""The objects of one kind and their recent events, in memory.

An event is encoded once for all watchers: it caches its encodings (plain, Table, per selector).
"""

import asyncio
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
EVENT_BYTES = 500
"""Memory of an event beside the body of its object: its record, labels and fields, measured as the
mean over the events of small jobs.
"""


class ObjectRevision:
    """One state of one object: its encoded JSON, and the values that selectors match."""

    __slots__ = ("body", "fields", "key", "labels", "rv")

    def __init__(
        self, key: str, rv: int, body: bytes, labels: dict[str, str], fields: dict[str, str]
    ) -> None:
        self.key = key
        self.rv = rv
        self.body = body
        self.labels = labels
        self.fields = fields

    def with_body(self, body: bytes) -> "ObjectRevision":
        """Return the same state in another encoding, such as another version."""
        return ObjectRevision(self.key, self.rv, body, self.labels, self.fields)


def make_revision(
    key: str,
    rv: int,
    body: bytes,
    index: tuple[dict[str, str], dict[str, str]],
    before: ObjectRevision | None,
) -> ObjectRevision:
    """Return a state of an object. What equals the state before it is shared with it.

    Revisions are numerous, and all of the history is in memory: labels and fields of their own
    would take about as much as the bodies of small objects.
    """
    labels, fields = index
    if before is None:
        return ObjectRevision(key, rv, body, _share_texts(labels), _share_texts(fields))
    return ObjectRevision(
        before.key,
        rv,
        body,
        before.labels if labels == before.labels else _share_texts(labels),
        before.fields if fields == before.fields else _share_texts(fields),
    )


def _share_texts(texts: dict[str, str]) -> dict[str, str]:
    """Return equal texts whose keys and values are shared with all other revisions."""
    intern = sys.intern
    return {intern(key): intern(value) for key, value in texts.items()} if texts else texts


class CacheEvent:
    """One change: the state after it (the last state, for a deletion) and the state before it."""

    __slots__ = ("at", "before", "encoded_forms", "record", "type")

    def __init__(self, type_: str, record: ObjectRevision, before: ObjectRevision | None) -> None:
        self.type = type_
        self.record = record
        self.before = before
        self.at = time.monotonic()
        self.encoded_forms: dict[object, bytes] | None = None

    @property
    def size(self) -> int:
        """About how many bytes of memory the event takes."""
        return len(self.record.body) + EVENT_BYTES


class WatchCache:
    """All objects of one kind, their history, and the uncommitted writes.

    ``events[i]`` has the sequence number ``base + i``. The cursor of a watcher is such a number, so
    dropping old events does not move any cursor.
    """

    def __init__(self, name: str, horizon: int) -> None:
        self.name = name
        self.horizon = horizon
        self.records: dict[str, ObjectRevision] = {}
        self.staged: dict[str, ObjectRevision | None] = {}
        self.in_flight: dict[str, asyncio.Future[ObjectRevision]] = {}
        self.events: list[CacheEvent] = []
        self.base = 0
        self.history_bytes = 0
        self.on_publish: Callable[[], None] | None = None
        self._keys: list[str] | None = None
        """The keys of ``records`` in order, from the first use of it. Writes keep the order:
        sorting for each list takes 50 ms of 100,000 keys.
        """

    @property
    def end(self) -> int:
        return self.base + len(self.events)

    def latest(self, key: str) -> ObjectRevision | None:
        """Return the newest state of ``key``, committed or not. Writes are based on it."""
        if key in self.staged:
            return self.staged[key]
        return self.records.get(key)

    def keys(self, namespace: str | None = None, after: str = "") -> list[str]:
        """Return the committed keys in order, optionally of one namespace, or those after a key."""
        if self._keys is None:
            self._keys = sorted(self.records)
        low, high = bisect_right(self._keys, after), len(self._keys)
        if namespace is not None:
            low = max(low, bisect_left(self._keys, f"{namespace}/"))
            high = bisect_left(self._keys, f"{namespace}0")
        return self._keys[low:high]

    def count_in(self, namespace: str) -> int:
        """Return the number of objects of a namespace, after all uncommitted writes."""
        count = len(self.keys(namespace))
        for key, record in self.staged.items():
            if key.startswith(f"{namespace}/"):
                count += (record is not None) - (key in self.records)
        return count

    def latest_in(self, namespace: str) -> list[ObjectRevision]:
        """Return the newest states of a namespace's objects, committed or not, in order."""
        keys = self.keys(namespace)
        new = [key for key in self.staged if key.startswith(f"{namespace}/")]
        if new:
            keys = sorted({*keys, *new})
        return [record for key in keys if (record := self.latest(key)) is not None]

    def all_latest(self) -> list[ObjectRevision]:
        """Return the newest states of all objects, committed or not."""
        keys = {*self.records, *self.staged}
        return [record for key in keys if (record := self.latest(key)) is not None]

    def publish(self, event: CacheEvent) -> None:
        key = event.record.key
        if event.type == DELETED:
            if self.records.pop(key, None) is not None and self._keys is not None:
                del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self.records and self._keys is not None:
                insort(self._keys, key)
            self.records[key] = event.record
        self.events.append(event)
        self.history_bytes += event.size
        if self.on_publish is not None:
            self.on_publish()

    def position_after(self, rv: int) -> int:
        """Return the sequence number of the first event newer than ``rv``."""
        return self.base + bisect_right(self.events, rv, key=lambda event: event.record.rv)

    def keys_at(
        self, rv: int, namespace: str | None = None, after: str = ""
    ) -> tuple[list[str], dict[str, ObjectRevision]]:
        """Return the keys of the objects at revision ``rv``, in order, and the states of those that
        were changed or deleted since.

        Args:
            rv: must not be older than the history.
            namespace: only objects of this namespace.
            after: only keys after this one.
        """
        before: dict[str, ObjectRevision | None] = {}
        for event in self.events[self.position_after(rv) - self.base :]:
            key = event.record.key
            if key > after and (namespace is None or key.startswith(f"{namespace}/")):
                before.setdefault(key, event.before)
        keys = self.keys(namespace, after)
        past = {key: record for key, record in before.items() if record is not None}
        if len(past) < len(before):  # some were created since
            keys = [key for key in keys if key in past or key not in before]
        if missing := [key for key in past if key not in self.records]:
            keys = sorted([*keys, *missing])  # nearly in order, which takes little time
        return keys, past

    def trim(self, older_than: float, surplus: int) -> list[int]:
        """Drop events before ``older_than``, and further ones until ``surplus`` bytes are freed.

        Returns the revisions whose rows are no longer needed.
        """
        count = freed = 0
        rows: list[int] = []
        for event in self.events:
            if event.at >= older_than and freed >= surplus:
                break
            count += 1
            freed += event.size
            if event.before is not None:
                rows.append(event.before.rv)
            if event.type == DELETED:
                rows.append(event.record.rv)
        if count:
            # After a restore, the horizon is above the revisions of all restored objects.
            self.horizon = max(self.horizon, self.events[count - 1].record.rv)
            del self.events[:count]
            self.base += count
            self.history_bytes -= freed
        return rows


def history_limit(sizes: Sequence[int], total: int) -> int:
    """Return the size to which each history is trimmed, so that all together have ``total`` bytes.

    Small histories stay as they are, and the large ones share the rest equally: many changes of one
    kind do not shorten the history of another.
    """
    left = total
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)
