"""Entries of the scheduling order, and their queues: one list, or one per namespace.

The scheduling order: which gang of which queue is served next.

1. Urgent gangs: they run and have lost a member, or restart.
2. From the root of the queue tree down: the queue that stays within its fair share, has the higher
   priority, and uses the smaller part of its fair share.
3. Within a queue: higher priority, minimums before extra pods (of these the smallest gang's),
creation
   time, and the name, so that the order is total. If namespaces share a queue fairly, gangs of one
   priority are ordered by the share of their namespace before their creation time.

Allocations of the cycle change shares, and with them the order: queues are ranked lazily.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.queueing.fair_share import NamespaceShares
from gangline.scheduler.queueing.gangs import GangOrder, PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PodInfo, PodShape, Request

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


_Rank = tuple[bool, int, float, tuple[object, ...], str]

_ONLY_CHILD: _Rank = (False, 0, 0.0, (), "")


class SchedulingOrder:
    """Entries in scheduling order. Allocations of the cycle change the order."""

    def __init__(
        self,
        units: Iterable[PendingGang],
        tree: QueueTree,
        share_of: Callable[[PendingGang], float] | None = None,
        shares: NamespaceShares | None = None,
    ) -> None:
        """Build the order.

        Args:
            units: the pending gangs.
            tree: the queues.
            share_of: usage of a gang, if that orders extra pods.
            shares: shares of namespaces, if these order gangs within queues.
        """
        self._tree, self._shares = tree, shares
        self._urgent: deque[QueueEntry] = deque()
        self._entry_queues: dict[str, EntryQueue] = {}
        self._active_children: dict[str, list[tuple[_Rank, str]]] = {}
        self._path: list[tuple[str, str]] = []
        urgent = []
        for unit in units:
            turn = QueueEntry(unit)
            if not unit.needed:
                share = share_of(unit) if share_of is not None else 0.0
                turn = QueueEntry(unit, True, deque(unit.pending), share=share)
            if unit.is_urgent and unit.needed:
                urgent.append(turn)
            else:
                self._entry_queue(unit.queue).add_first((turn.key, turn))
        self._urgent.extend(sorted(urgent, key=lambda turn: turn.unit.order))
        for line in self._entry_queues.values():
            line.sort()
        self._queues_ranked = False
        """Queues are ranked after the urgent gangs were served, since those change the usage."""

    def pop(self) -> QueueEntry | None:
        """Return the next entry; None: no entry is left."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._queues_ranked:
            self._queues_ranked = True
            for queue in self._entry_queues:
                self._activate_queue(queue)
        if (
            self._path
            and not any(self._active_children.values())
            and self._entry_queues[self._path[-1][1]]
        ):
            # Only the queue that was served last has entries.
            return self._entry_queues[self._path[-1][1]].pop()
        self._reinsert_served()
        name = ROOT_QUEUE
        while below := self._active_children.get(name):
            _, child = heappop(below)
            self._path.append((name, child))
            name = child
        line = self._entry_queues.get(name)
        return line.pop() if line else None

    def requeue(self, turn: QueueEntry) -> None:
        """Requeue a gang for its remaining extra pods."""
        line = self._entry_queue(turn.unit.queue)
        line.push((turn.key, turn))
        if not self._queues_ranked:
            return
        if len(line) == 1 and (not self._path or self._path[-1][1] != turn.unit.queue):
            self._activate_queue(turn.unit.queue)

    def _entry_queue(self, queue: str) -> EntryQueue:
        line = self._entry_queues.get(queue)
        if line is None:
            line = EntryQueue() if self._shares is None else NamespaceFairQueue(self._shares)
            self._entry_queues[queue] = line
        return line

    @property
    def empty(self) -> bool:
        """True if no other entry is left."""
        return not self._urgent and not any(self._entry_queues.values())

    def _activate_queue(self, queue: str) -> None:
        """Activate a queue that has entries again, and its idle ancestors."""
        self._reinsert_served()
        for account in self._tree.queues[queue].path():
            parent = account.parent.info.name if account.parent else ROOT_QUEUE
            siblings = self._active_children.setdefault(parent, [])
            busy = bool(siblings)
            self._push(parent, account.info.name)
            if busy:
                return

    def _reinsert_served(self) -> None:
        """Reinsert the queue that was served last at its new rank."""
        while self._path:
            parent, child = self._path.pop()
            if self._entry_queues.get(child) or self._active_children.get(child):
                self._push(parent, child)

    def _push(self, parent: str, child: str) -> None:
        siblings = self._active_children.setdefault(parent, [])
        heappush(
            siblings, (self._rank(child) if self._has_siblings(parent) else _ONLY_CHILD, child)
        )

    def _has_siblings(self, parent: str) -> bool:
        """Return whether ``parent`` has several children: only then is a rank needed."""
        return len(self._tree.queues[parent].children) > 1

    def _rank(self, queue: str) -> _Rank:
        account = self._tree.queues[queue]
        key, turn = self._head(queue)
        borrows = account.would_exceed_fair_share(self._tree.request_vector(turn.requested))
        return (borrows, -account.info.priority, account.share, key, queue)

    def _head(self, queue: str) -> KeyedEntry:
        while below := self._active_children.get(queue):
            queue = below[0][1]
        return self._entry_queues[queue].head()
