"""The scheduling order: which gang of which queue is served next.

1. Urgent gangs: they run and have lost a member, or restart.
2. From the root of the queue tree down: the queue that stays within its fair share, has the higher
   priority, and uses the smaller part of its fair share.
3. Within a queue: higher priority, minimums before extra pods (of these the smallest gang's),
creation
   time, and the name, so that the order is total. If namespaces share a queue fairly, gangs of one
   priority are ordered by the share of their namespace before their creation time.

Allocations of the cycle change shares, and with them the order: queues are ranked lazily.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from gangline.api.scheduling import ROOT_QUEUE
from gangline.scheduler.fairness import NamespaceShares
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.turns import KeyedEntry, NamespaceFairQueue, EntryQueue, QueueEntry
from gangline.scheduler.units import PendingGang

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
