"""Long polls: waiting requests by what they wait for, each with a timeout."""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangline.elastic.protocol.messages import Request
from gangline.elastic.protocol.server import Peer

K = TypeVar("K", bound=Hashable)

MAX_WAIT_S = 300.0
"""Upper limit of the timeout that a request may ask for."""


@dataclass(slots=True, eq=False)
class LongPoll:
    """A waiting request."""

    peer: Peer
    number: int
    request: Request
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class LongPolls(Generic[K]):
    """Waiting requests by key."""

    def __init__(self, expired: Callable[[LongPoll], None]) -> None:
        self._expired = expired
        self._by_key: dict[K, dict[LongPoll, None]] = {}

    def __len__(self) -> int:
        return sum(len(polls) for polls in self._by_key.values())

    def add(self, key: K, poll: LongPoll, wait_s: float) -> None:
        """Store a waiting request; after ``wait_s`` it is removed and ``expired`` is called."""
        patience = min(max(wait_s, 0.0), MAX_WAIT_S)
        loop = asyncio.get_running_loop()
        poll.timer = loop.call_later(patience, self._expire, key, poll)
        self._by_key.setdefault(key, {})[poll] = None

    def of(self, key: K) -> list[LongPoll]:
        """Return the requests that wait for a key, in order of arrival."""
        return [*self._by_key.get(key, ())]

    def all(self) -> Iterator[tuple[K, LongPoll]]:
        """Yield all waiting requests. They may be removed meanwhile."""
        for key, polls in [*self._by_key.items()]:
            for poll in [*polls]:
                yield key, poll

    def remove(self, key: K, poll: LongPoll) -> None:
        if poll.timer is not None:
            poll.timer.cancel()
        polls = self._by_key.get(key, {})
        polls.pop(poll, None)
        if not polls:
            self._by_key.pop(key, None)

    def drop(self, peer: Peer) -> None:
        for key, poll in self.all():
            if poll.peer is peer:
                self.remove(key, poll)

    def _expire(self, key: K, poll: LongPoll) -> None:
        self.remove(key, poll)
        self._expired(poll)
