"""The scheduling order: which gang of which queue is served next.

1. Urgent gangs: they run and have lost a member, or restart.
2. From the root of the queue tree down: the queue that stays within its fair share, has the higher
   priority, has waited longest with a reservation, and uses the smaller part of its fair share. A
   gang that borrows does not keep later ones of its queue from being within the share: it is set
   aside until no other gang is left that does not borrow (except in a FIFO queue).
3. Within a queue: gangs that have waited too long, higher priority, minimums before extra pods (of
   these the smallest gang's), the time at which they have waited too long, creation time, and the
   name, so that the order is total. If namespaces share a queue fairly, gangs of one priority are
   ordered by the share of their namespace before these times.

A share is a *dominant share* (DRF): the largest used fraction of any resource. A gang has no share
before it starts, so shares of gangs order extra pods only. A gang is charged only with usage of
older gangs in its namespace. That usage shrinks as they finish, so a large gang cannot be starved
by younger small ones.

Allocations of the cycle change shares, and with them the order: queues are ranked lazily.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias

import numpy as np

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.queueing.gangs import GangOrder, PendingGang
from gangline.scheduler.queueing.queue_tree import (
    QueueAttributes,
    QueueTree,
    ShareClaim,
    Vector,
    dominant_share,
)
from gangline.scheduler.types import PodInfo, PodKey, PodShape, Request


@dataclass(frozen=True, slots=True)
class FairnessPolicy:
    """Which shares order the gangs of a queue."""

    gangs: bool = False
    """Order extra pods by the share of their gang."""
    namespaces: bool = False
    """Order gangs of one priority by the share of their namespace."""


ORDER_BY_AGE = FairnessPolicy()
"""The oldest gang comes first."""


_QueueNamespace: TypeAlias = tuple[str, str]
"""A queue and a namespace."""
_GangAge: TypeAlias = tuple[datetime, str]
"""Creation time and name of a gang."""
RESERVED_SHARE = -1.0
"""Share of a gang with a reservation: it comes first."""


class NamespaceShares:
    """The share of each namespace in each queue, as charged to a gang."""

    def __init__(self, state: SchedulerCache, tree: QueueTree) -> None:
        self._state, self._tree = state, tree
        self._given: dict[_QueueNamespace, Vector] = {}
        """Allocations of this cycle."""
        self._used: dict[_QueueNamespace, tuple[list[_GangAge], list[Vector]]] | None = None
        """Running gangs by age, with cumulative usage."""

    def lane_of(self, gang: PendingGang) -> str:
        """Return the namespace of a gang, or its own identity if it has a reservation.

        A reservation belongs to one gang, which need not be the first of its namespace.
        """
        return gang.id if gang.id in self._state.reservations else _namespace(gang.name)

    def share_of(self, gang: PendingGang) -> float:
        """Return the share charged to a gang; it only grows as the cycle allocates."""
        if gang.id in self._state.reservations:
            return RESERVED_SHARE
        if self._used is None:
            self._used = self._by_age()
        user_key = (gang.queue, _namespace(gang.name))
        total = self._given.get(user_key, np.zeros(len(self._tree.columns)))
        ages, sums = self._used.get(user_key, ([], []))
        if count := bisect_left(ages, (gang.created, gang.id)):
            total = total + sums[count - 1]
        return dominant_share(total, self._tree.total)

    def add_usage(self, gang: PendingGang, amount: Vector) -> None:
        """Add an allocation of this cycle."""
        user_key = (gang.queue, _namespace(gang.name))
        given = self._given.get(user_key)
        self._given[user_key] = amount if given is None else given + amount

    def _by_age(self) -> dict[_QueueNamespace, tuple[list[_GangAge], list[Vector]]]:
        running: dict[_QueueNamespace, list[tuple[_GangAge, Vector]]] = defaultdict(list)
        for name, pods in self._state.placed_members.items():
            usage = self._gang_usage(name, next(iter(pods.values())))
            if usage is not None:
                queue, created, amount = usage
                running[queue, _namespace(name)].append(((created, name), amount))
        result = {}
        for user_key, users in running.items():
            users.sort(key=lambda user: user[0])
            sums = np.cumsum([amount for _, amount in users], axis=0)
            result[user_key] = ([age for age, _ in users], list(sums))
        return result

    def _gang_usage(self, name: str, pod: PodInfo) -> tuple[str, datetime, Vector] | None:
        """Return queue, age and usage of a running gang or pod; None: it is charged to no queue."""
        state = self._state
        queue = state.usage.queue_of(pod.group)
        if pod.group is None:
            amount = self._tree.request_vector(pod.shape.request)
            return (queue, pod.created, amount) if pod.is_ours else None
        group = state.groups.get(pod.group)
        used = state.usage.by_group.get(pod.group)
        if group is None or not used:
            return None
        return queue, group.created, self._tree.request_vector(tuple(sorted(used.items())))


def _namespace(name: str | PodKey) -> str:
    return name.partition("/")[0]


_NO_PODS: deque[PodInfo] = deque()
"""Shared by entries that are not for extra pods; never written to."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A gang to serve: for its minimum, or for pods beyond it."""

    gang: PendingGang
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
        return self.remaining[0].shape.request if self.is_extra else self.gang.requested

    @property
    def key(self) -> GangOrder:
        """Sort key within its queue."""
        if not self.is_extra:
            return self.gang.order
        priority, _, _, deadline, created, name, is_single = self.gang.order
        return (priority, True, self.share, deadline, created, name, is_single)


KeyedEntry: TypeAlias = tuple[GangOrder, QueueEntry]


class EntryQueue:
    """The entries of one queue: one lane, or one for each namespace if namespaces share fairly.

    Most entries are served once and in order, so one sort is cheaper than a heap. Within a lane the
    order is by priority, then by creation time. The lane with the smallest share is served first.
    """

    def __init__(self, shares: NamespaceShares | None = None) -> None:
        self._shares = shares
        self._lanes: dict[str, list[KeyedEntry]] = defaultdict(list)
        """First entries of each lane in reverse order: the last one is served first."""
        self._heads: list[tuple[GangOrder, str]] = []
        """A heap of the first entry of each lane. Shares only grow, so a stored key is never too
        large.
        """
        self._requeued: list[KeyedEntry] = []
        """A heap of requeued entries."""
        self._aside: list[KeyedEntry] = []
        """A heap of entries that come after all others of the queue."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add_first(self, entry: QueueEntry) -> None:
        """Add a first entry; ``sort`` must follow."""
        lane = self._shares.lane_of(entry.gang) if self._shares is not None else ""
        self._lanes[lane].append((entry.key, entry))
        self._size += 1

    def sort(self) -> None:
        for lane in self._lanes.values():
            lane.sort(reverse=True)
        self._heads = [(self._key(lane), lane) for lane in self._lanes]
        heapify(self._heads)

    def requeue(self, entry: QueueEntry) -> None:
        heappush(self._requeued, (entry.key, entry))
        self._size += 1

    @property
    def has_first(self) -> bool:
        """True if not all entries are set aside."""
        return self._size > len(self._aside)

    def set_aside_while(self, borrows: Callable[[Request], bool]) -> None:
        """Set the next entries aside whose requests borrow."""
        if self._shares is None and not self._requeued and self._heads:
            # The usual case, without a look at all lanes for each of thousands of entries.
            lane = self._lanes[self._heads[0][1]]
            last: Request | None = None
            while lane and (lane[-1][1].requested == last or borrows(lane[-1][1].requested)):
                key, entry = lane.pop()
                last = entry.requested
                heappush(self._aside, (key, entry))
            self._heads = [(lane[-1][0], self._heads[0][1])] if lane else []
        while self.has_first and borrows(self.head()[1].requested):
            entry = self.pop()
            heappush(self._aside, (entry.key, entry))
            self._size += 1

    def rejoin(self) -> None:
        """Put entries that were set aside back into their order."""
        while self._aside:
            heappush(self._requeued, self._aside.pop())

    def head(self) -> KeyedEntry:
        """Return the next entry; the queue must not be empty."""
        if not self.has_first:
            return self._aside[0]
        first = self._first_key()
        if first is None or (self._requeued and self._requeued[0][0] < first):
            return self._requeued[0]
        return first, self._lanes[self._heads[0][1]][-1][1]

    def pop(self) -> QueueEntry:
        """Remove and return the next entry; the queue must not be empty."""
        self._size -= 1
        if self._size < len(self._aside):
            return heappop(self._aside)[1]
        first = self._first_key()
        if first is None or (self._requeued and self._requeued[0][0] < first):
            return heappop(self._requeued)[1]
        lane = self._heads[0][1]
        entry = self._lanes[lane].pop()[1]
        if self._lanes[lane]:
            heapreplace(self._heads, (self._key(lane), lane))
        else:
            heappop(self._heads)
        return entry

    def _first_key(self) -> GangOrder | None:
        """Return the smallest key of all lanes with the current shares."""
        if self._shares is None:
            return self._heads[0][0] if self._heads else None
        while self._heads:
            stored, lane = self._heads[0]
            key = self._key(lane)
            if key == stored:
                return key
            heapreplace(self._heads, (key, lane))
        return None

    def _key(self, lane: str) -> GangOrder:
        key, entry = self._lanes[lane][-1]
        if self._shares is None or entry.is_extra:
            return key
        priority, is_extra, *_ = key
        share = self._shares.share_of(entry.gang)
        deadline, created, name, is_single = key[3:]
        return (priority, is_extra, share, deadline, created, name, is_single)


_Rank = tuple[ShareClaim, int, bool, float, tuple[object, ...], str]


class _Position(NamedTuple):
    """The next entry of a queue and its rank, at a revision of the queue."""

    revision: int
    rank: _Rank
    head: KeyedEntry


class SchedulingOrder:
    """Entries in scheduling order. Allocations of the cycle change the order."""

    def __init__(
        self,
        gangs: Iterable[PendingGang],
        tree: QueueTree,
        share_of: Callable[[PendingGang], float] | None = None,
        shares: NamespaceShares | None = None,
        reserved_since: Mapping[str, float] | None = None,
    ) -> None:
        """Build the order.

        Args:
            share_of: usage of a gang, if that orders extra pods.
            shares: shares of namespaces, if these order gangs within queues.
            reserved_since: since when gangs wait with a reservation.
        """
        self._tree, self._shares = tree, shares
        self._reserved_since = reserved_since or {}
        self._urgent: deque[QueueEntry] = deque()
        self._entry_queues: dict[str, EntryQueue] = {}
        self._active_children: dict[str, list[tuple[_Rank, str]]] = {}
        self._path: list[tuple[str, str]] = []
        self._positions: dict[str, _Position] = {}
        """Positions of queues with entries, each as long as neither it nor its usage changes."""
        urgent = []
        for gang in gangs:
            entry = QueueEntry(gang)
            if not gang.needed:
                share = share_of(gang) if share_of is not None else 0.0
                entry = QueueEntry(gang, True, deque(gang.pending), share=share)
            if gang.is_urgent and gang.needed:
                urgent.append(entry)
            else:
                self._entry_queue(gang.queue).add_first(entry)
        self._urgent.extend(sorted(urgent, key=lambda entry: entry.gang.order))
        for queue in self._entry_queues.values():
            queue.sort()
        self._competing: int | None = None
        """Number of queues with entries; None: they are not ranked yet. They are ranked after the
        urgent gangs were served, since those change the usage.
        """
        self._last: EntryQueue | None = None
        """The only queue that has entries, once there is one."""

    def pop(self) -> QueueEntry | None:
        """Return the next entry; None: no entry is left."""
        if self._urgent:
            return self._urgent.popleft()
        if self._competing is None:
            self._competing = sum(map(bool, self._entry_queues.values()))
            if self._competing > 1:
                self._rank_below(self._tree.root)
        if self._last is not None or self._competing <= 1:
            return self._pop_of_last_queue()
        self._update_path()
        name = self._path[-1][1] if self._path else ROOT_QUEUE
        while below := self._active_children.get(name):
            self._update_first(name)
            _, child = heappop(below)
            self._path.append((name, child))
            name = child
            self._positions.pop(name, None)
        entries = self._entry_queues[name]
        entry = entries.pop()
        self._competing -= not entries
        return entry

    def _update_path(self) -> None:
        """Remove the queues from the path that do not come first any more, from the last one up.

        Most entries of a cycle change no usage, so the same queue, or one beside it, comes next.
        The stored ranks of other queues are never too large.
        """
        head: KeyedEntry | None = None
        stays: list[tuple[str, str, _Position]] = []
        """The queues further down that come first below their parents."""
        for depth in reversed(range(len(self._path))):
            parent, child = self._path[depth]
            if head is None and self._is_active(child):
                head = self._head(child)
            if head is not None:
                rank, others = self._rank_with(child, head), self._active_children[parent]
                stays.append((parent, child, _Position(self._tree.revision(child), rank, head)))
                if not others or (rank, child) < others[0]:
                    continue
            for above, queue, position in stays:
                heappush(self._active_children[above], (position.rank, queue))
                self._positions[queue] = position
            stays.clear()
            head = None
            del self._path[depth:]

    def pop_while(
        self, queue: str, accepts: Callable[[PendingGang], bool]
    ) -> Iterator[PendingGang]:
        """Remove and return the next gangs of a queue, whatever the ranks of others, as long as
        they are accepted.
        """
        entries = self._entry_queues[queue]
        while entries:
            entry = entries.head()[1]
            if entry.is_extra or not accepts(entry.gang):
                return
            entries.pop()
            if self._competing is not None:
                self._competing -= not entries
            yield entry.gang

    def _is_active(self, queue: str) -> bool:
        return bool(self._entry_queues.get(queue) or self._active_children.get(queue))

    def requeue(self, entry: QueueEntry) -> None:
        """Requeue the gang that was served last, for its remaining extra pods."""
        entries = self._entry_queue(entry.gang.queue)
        if self._competing is not None:
            self._competing += not entries
        entries.requeue(entry)

    def _pop_of_last_queue(self) -> QueueEntry | None:
        """Return the next entry of the only queue that has any: it competes with no other one."""
        if self._last is None:
            self._last = next(filter(None, self._entry_queues.values()), None)
            if self._last is None:
                return None
            self._last.rejoin()
        return self._last.pop() if self._last else None

    def _entry_queue(self, name: str) -> EntryQueue:
        queue = self._entry_queues.get(name)
        if queue is None:
            queue = self._entry_queues[name] = EntryQueue(self._shares)
        return queue

    @property
    def empty(self) -> bool:
        """True if no other entry is left."""
        return not self._urgent and not any(self._entry_queues.values())

    def _rank_below(self, queue: QueueAttributes) -> bool:
        """Rank all queues below this one that have entries; return whether it has any itself.

        A rank depends on the first entry of all queues below, so these are ranked before.
        """
        name = queue.info.name
        for child in queue.children:
            if self._rank_below(child):
                self._push(name, child.info.name)
        return self._is_active(name)

    def _push(self, parent: str, child: str) -> None:
        heappush(self._active_children.setdefault(parent, []), (self._rank(child), child))

    def _update_first(self, parent: str) -> None:
        """Update ranks until the first child is known: what one child was given counts for the
        share of the parent, and with it for the ranks of the others.
        """
        if parent == ROOT_QUEUE:
            return
        below = self._active_children[parent]
        while (rank := self._rank(below[0][1])) > below[0][0]:
            heapreplace(below, (rank, below[0][1]))

    def _rank(self, queue: str) -> _Rank:
        return self._position(queue).rank

    def _position(self, queue: str) -> _Position:
        revision = self._tree.revision(queue)
        position = self._positions.get(queue)
        if position is not None and position.revision == revision:
            return position
        head = self._head(queue)
        rank = self._rank_with(queue, head)
        position = self._positions[queue] = _Position(revision, rank, head)
        return position

    def _rank_with(self, queue: str, head: KeyedEntry) -> _Rank:
        """Return the rank of a queue whose next entry is this one."""
        key, entry = head
        attributes = self._tree.queues[queue]
        since = None if entry.is_extra else self._reserved_since.get(entry.gang.id)
        waited = attributes.share if since is None else since
        claim = self._claim(queue, entry)
        return claim, -attributes.info.priority, since is None, waited, key, queue

    def _head(self, queue: str) -> KeyedEntry:
        if below := self._active_children.get(queue):
            self._update_first(queue)
            return self._position(below[0][1]).head
        return self._first_entry(queue, self._entry_queues[queue])

    def _first_entry(self, queue: str, entries: EntryQueue) -> KeyedEntry:
        """Return the next entry of a queue, after those that borrow were set aside."""
        if not self._tree.queues[queue].info.fifo:
            claim = self._tree.request_claim
            entries.set_aside_while(lambda asked: claim(queue, asked) is ShareClaim.BORROWS)
        return entries.head()

    def _claim(self, queue: str, entry: QueueEntry) -> ShareClaim:
        """Return how an entry relates to the shares of a queue and its ancestors."""
        claim = self._tree.request_claim(queue, entry.requested)
        if claim is ShareClaim.ENTITLED and entry.gang.id in self._reserved_since:
            return ShareClaim.WITHIN
        return claim
