"""Entries of the scheduling order, and their queues: one list, or one per namespace."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from gangline.scheduler.fairness import NamespaceShares
from gangline.scheduler.model import PodInfo, Request, PodShape
from gangline.scheduler.units import GangOrder, PendingGang

_NO_PODS: deque[PodInfo] = deque()
"""Shared by entries that are not for extra pods; never written to."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A gang to serve: for its minimum, or for pods beyond it."""

    unit: PendingGang
    is_extra: bool = False
    remaining: deque[PodInfo] = field(default_factory=lambda: _NO_PODS)
    """Extra pods that were not tried yet."""
    refused_shapes: frozenset[PodShape] = frozenset()
    """Shapes of which a pod found no node."""
    share: float = 0.0
    """Usage of the gang, as a fraction of the cluster."""

    @property
    def requested(self) -> Request:
        """The amount that is allocated if the entry succeeds."""
        return self.remaining[0].shape.request if self.is_extra else self.unit.requested

    @property
    def key(self) -> GangOrder:
        """Sort key within its queue."""
        if not self.is_extra:
            return self.unit.order
        priority, _, _, created, name, alone = self.unit.order
        return (priority, True, self.share, created, name, alone)


KeyedEntry: TypeAlias = tuple[GangOrder, QueueEntry]


class EntryQueue:
    """The entries of one queue. Most are served once and in order, so one sort is cheaper than a
    heap.
    """

    def __init__(self) -> None:
        self._first: list[KeyedEntry] = []
        """First entries in reverse order: the last one is served first."""
        self._again: list[KeyedEntry] = []
        """A heap of requeued entries."""

    def __bool__(self) -> bool:
        return bool(self._first or self._again)

    def __len__(self) -> int:
        return len(self._first) + len(self._again)

    def add_first(self, entry: KeyedEntry) -> None:
        """Add a first entry; ``settle`` must follow."""
        self._first.append(entry)

    def sort(self) -> None:
        """Sort the first entries."""
        self._first.sort()
        self._first.reverse()

    def push(self, entry: KeyedEntry) -> None:
        heappush(self._again, entry)

    def head(self) -> KeyedEntry:
        """Return the next entry; the queue must not be empty."""
        if not self._again or (self._first and self._first[-1] < self._again[0]):
            return self._first[-1]
        return self._again[0]

    def pop(self) -> QueueEntry:
        """Remove and return the next entry; the queue must not be empty."""
        if not self._again or (self._first and self._first[-1] < self._again[0]):
            return self._first.pop()[1]
        return heappop(self._again)[1]


class NamespaceFairQueue(EntryQueue):
    """The entries of one queue by namespace: the namespace with the smallest share is served first.

    Within a namespace the order is by priority, then by creation time.
    """

    def __init__(self, shares: NamespaceShares) -> None:
        super().__init__()
        self._shares = shares
        self._lanes: dict[str, list[KeyedEntry]] = defaultdict(list)
        """Entries of each namespace in reverse order: the last one is served first."""
        self._heads: list[tuple[GangOrder, str]] = []
        """A heap of the first entry of each namespace. Shares only grow, so a stored key is never
        too large.
        """
        self._left = 0

    def __bool__(self) -> bool:
        return bool(self._left or self._again)

    def __len__(self) -> int:
        return self._left + len(self._again)

    def add_first(self, entry: KeyedEntry) -> None:
        self._lanes[self._shares.lane_of(entry[1].unit)].append(entry)
        self._left += 1

    def sort(self) -> None:
        for lane in self._lanes.values():
            lane.sort()
            lane.reverse()
        self._heads = [(self._key(lane), lane) for lane in self._lanes]
        heapify(self._heads)

    def head(self) -> KeyedEntry:
        first = self._first_key()
        if first is None or (self._again and self._again[0][0] < first):
            return self._again[0]
        return first, self._lanes[self._heads[0][1]][-1][1]

    def pop(self) -> QueueEntry:
        first = self._first_key()
        if first is None or (self._again and self._again[0][0] < first):
            return heappop(self._again)[1]
        lane = self._heads[0][1]
        turn = self._lanes[lane].pop()[1]
        self._left -= 1
        if self._lanes[lane]:
            heapreplace(self._heads, (self._key(lane), lane))
        else:
            heappop(self._heads)
        return turn

    def _first_key(self) -> GangOrder | None:
        """Return the smallest key of all namespaces with the current shares."""
        while self._heads:
            known, lane = self._heads[0]
            key = self._key(lane)
            if key == known:
                return key
            heapreplace(self._heads, (key, lane))
        return None

    def _key(self, lane: str) -> GangOrder:
        key, turn = self._lanes[lane][-1]
        if turn.is_extra:
            return key
        priority, surplus, _, created, name, alone = key
        return (priority, surplus, self._shares.share_of(turn.unit), created, name, alone)
