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
from gangline.scheduler.turns import Entry, LanesByShare, QueueLine, Turn
from gangline.scheduler.units import Unit

_Rank = tuple[bool, int, float, tuple[object, ...], str]

_ALONE: _Rank = (False, 0, 0.0, (), "")


class Line:
    """Entries in scheduling order. Allocations of the cycle change the order."""

    def __init__(
        self,
        units: Iterable[Unit],
        tree: QueueTree,
        share_of: Callable[[Unit], float] | None = None,
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
        self._urgent: deque[Turn] = deque()
        self._lines: dict[str, QueueLine] = {}
        self._below: dict[str, list[tuple[_Rank, str]]] = {}
        self._path: list[tuple[str, str]] = []
        urgent = []
        for unit in units:
            turn = Turn(unit)
            if not unit.needed:
                share = share_of(unit) if share_of is not None else 0.0
                turn = Turn(unit, True, deque(unit.waiting), share=share)
            if unit.urgent and unit.needed:
                urgent.append(turn)
            else:
                self._line(unit.queue).enter((turn.key, turn))
        self._urgent.extend(sorted(urgent, key=lambda turn: turn.unit.order))
        for line in self._lines.values():
            line.settle()
        self._open = False
        """Queues are ranked after the urgent gangs were served, since those change the usage."""

    def pop(self) -> Turn | None:
        """Return the next entry; None: no entry is left."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._open:
            self._open = True
            for queue in self._lines:
                self._enter(queue)
        if self._path and not any(self._below.values()) and self._lines[self._path[-1][1]]:
            # Only the queue that was served last has entries.
            return self._lines[self._path[-1][1]].pop()
        self._settle()
        name = ROOT_QUEUE
        while below := self._below.get(name):
            _, child = heappop(below)
            self._path.append((name, child))
            name = child
        line = self._lines.get(name)
        return line.pop() if line else None

    def again(self, turn: Turn) -> None:
        """Requeue a gang for its remaining extra pods."""
        line = self._line(turn.unit.queue)
        line.push((turn.key, turn))
        if not self._open:
            return
        if len(line) == 1 and (not self._path or self._path[-1][1] != turn.unit.queue):
            self._enter(turn.unit.queue)

    def _line(self, queue: str) -> QueueLine:
        line = self._lines.get(queue)
        if line is None:
            line = QueueLine() if self._shares is None else LanesByShare(self._shares)
            self._lines[queue] = line
        return line

    @property
    def empty(self) -> bool:
        """True if no other entry is left."""
        return not self._urgent and not any(self._lines.values())

    def _enter(self, queue: str) -> None:
        """Activate a queue that has entries again, and its idle ancestors."""
        self._settle()
        for account in self._tree.accounts[queue].path():
            parent = account.parent.facts.name if account.parent else ROOT_QUEUE
            siblings = self._below.setdefault(parent, [])
            busy = bool(siblings)
            self._push(parent, account.facts.name)
            if busy:
                return

    def _settle(self) -> None:
        """Reinsert the queue that was served last at its new rank."""
        while self._path:
            parent, child = self._path.pop()
            if self._lines.get(child) or self._below.get(child):
                self._push(parent, child)

    def _push(self, parent: str, child: str) -> None:
        siblings = self._below.setdefault(parent, [])
        heappush(siblings, (self._rank(child) if self._rivals(parent) else _ALONE, child))

    def _rivals(self, parent: str) -> bool:
        """Return whether ``parent`` has several children: only then is a rank needed."""
        return len(self._tree.accounts[parent].children) > 1

    def _rank(self, queue: str) -> _Rank:
        account = self._tree.accounts[queue]
        key, turn = self._head(queue)
        borrows = account.borrows(self._tree.amount(turn.asked))
        return (borrows, -account.facts.priority, account.share, key, queue)

    def _head(self, queue: str) -> Entry:
        while below := self._below.get(queue):
            queue = below[0][1]
        return self._lines[queue].head()
