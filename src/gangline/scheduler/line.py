"""The order of service: whose turn it is, as a decision hands room out.

First come gangs that are urgent: they run and have lost a member, or restart as a whole. Then, from
the root of the queues down, the queue that stays within what it is entitled to, has the higher
priority, and uses the smaller part of its entitlement. Within a queue: higher priority, gangs that
still need their minimum before pods beyond a minimum, of these the smallest gang's, who came first,
and the name, so that the order is total.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gangline.api.scheduling import ROOT_QUEUE
from gangline.scheduler.model import PodFacts, Request, Shape
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.units import Order, Unit

_NONE: deque[PodFacts] = deque()
"""Of turns that are not for pods beyond a minimum; never written to."""


@dataclass(slots=True, eq=False)
class Turn:
    """A unit whose turn it is: for its minimum, or for pods beyond it."""

    unit: Unit
    surplus: bool = False
    left: deque[PodFacts] = field(default_factory=lambda: _NONE)
    """Pods beyond the minimum that have not had their turn yet."""
    refused: frozenset[Shape] = frozenset()
    """Shapes of which a pod has found no node."""
    share: float = 0.0
    """How large its gang is already, as part of the cluster."""

    @property
    def asked(self) -> Request:
        """What would be used if its turn succeeded."""
        return self.left[0].shape.request if self.surplus else self.unit.asked

    @property
    def key(self) -> Order:
        """The sort key within its queue."""
        if not self.surplus:
            return self.unit.order
        priority, _, _, created, name, alone = self.unit.order
        return (priority, True, self.share, created, name, alone)


_Entry = tuple[Order, Turn]
_Rank = tuple[bool, int, float, tuple[object, ...], str]


_ALONE: _Rank = (False, 0, 0.0, (), "")


class _Queue:
    """The turns of one queue. Most come once, and in order: sorting them costs next to nothing."""

    def __init__(self) -> None:
        self._first: list[_Entry] = []
        """The last is the first to go."""
        self._again: list[_Entry] = []
        """A heap of those that have further turns."""

    def __bool__(self) -> bool:
        return bool(self._first or self._again)

    def __len__(self) -> int:
        return len(self._first) + len(self._again)

    def enter(self, entry: _Entry) -> None:
        """Add a first turn; ``settle`` has to follow."""
        self._first.append(entry)

    def settle(self) -> None:
        """Bring first turns into their order."""
        self._first.sort()
        self._first.reverse()

    def push(self, entry: _Entry) -> None:
        """Add a further turn."""
        heappush(self._again, entry)

    def head(self) -> _Entry:
        """Return the next turn; there is one."""
        if not self._again or (self._first and self._first[-1] < self._again[0]):
            return self._first[-1]
        return self._again[0]

    def pop(self) -> Turn:
        """Take the next turn; there is one."""
        if not self._again or (self._first and self._first[-1] < self._again[0]):
            return self._first.pop()[1]
        return heappop(self._again)[1]


class Line:
    """Turns in the order of service. What is handed out meanwhile changes the order."""

    def __init__(self, units: Iterable[Unit], tree: QueueTree) -> None:
        self._tree = tree
        self._urgent: deque[Turn] = deque()
        self._lines: dict[str, _Queue] = {}
        self._below: dict[str, list[tuple[_Rank, str]]] = {}
        self._path: list[tuple[str, str]] = []
        urgent = []
        for unit in units:
            turn = Turn(unit) if unit.needed else Turn(unit, True, deque(unit.waiting))
            if unit.urgent and unit.needed:
                urgent.append(turn)
            else:
                self._line(unit.queue).enter((turn.key, turn))
        self._urgent.extend(sorted(urgent, key=lambda turn: turn.unit.order))
        for line in self._lines.values():
            line.settle()
        self._open = False
        """Queues are ranked once the urgent have been served, for that changes their use."""

    def pop(self) -> Turn | None:
        """Return the next turn; None: nobody is left."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._open:
            self._open = True
            for queue in self._lines:
                self._enter(queue)
        if self._path and not any(self._below.values()) and self._lines[self._path[-1][1]]:
            # Only the queue that was served last is busy: it is its turn again.
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
        """Let a unit have another turn, for pods beyond its minimum."""
        line = self._line(turn.unit.queue)
        line.push((turn.key, turn))
        if not self._open:
            return
        if len(line) == 1 and (not self._path or self._path[-1][1] != turn.unit.queue):
            self._enter(turn.unit.queue)

    def _line(self, queue: str) -> _Queue:
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Queue()
        return line

    @property
    def empty(self) -> bool:
        """Nobody else is left."""
        return not self._urgent and not any(self._lines.values())

    def _enter(self, queue: str) -> None:
        """Enter a queue that has become busy, and those above it that were idle."""
        self._settle()
        for account in self._tree.accounts[queue].path():
            parent = account.parent.facts.name if account.parent else ROOT_QUEUE
            siblings = self._below.setdefault(parent, [])
            busy = bool(siblings)
            self._push(parent, account.facts.name)
            if busy:
                return

    def _settle(self) -> None:
        """Put the queue that was served last back in its new place."""
        while self._path:
            parent, child = self._path.pop()
            if self._lines.get(child) or self._below.get(child):
                self._push(parent, child)

    def _push(self, parent: str, child: str) -> None:
        siblings = self._below.setdefault(parent, [])
        heappush(siblings, (self._rank(child) if self._rivals(parent) else _ALONE, child))

    def _rivals(self, parent: str) -> bool:
        """Say whether more than one queue below ``parent`` is busy: only then is there a choice."""
        return len(self._tree.accounts[parent].children) > 1

    def _rank(self, queue: str) -> _Rank:
        account = self._tree.accounts[queue]
        key, turn = self._head(queue)
        borrows = account.borrows(self._tree.amount(turn.asked))
        return (borrows, -account.facts.priority, account.share, key, queue)

    def _head(self, queue: str) -> _Entry:
        while below := self._below.get(queue):
            queue = below[0][1]
        return self._lines[queue].head()
