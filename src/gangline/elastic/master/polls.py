"""Those who wait for an answer: by what they wait for, each with an end to its patience."""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangline.elastic.protocol.messages import Request
from gangline.elastic.protocol.server import Peer

K = TypeVar("K", bound=Hashable)

LONGEST_WAIT_S = 300.0
"""A poll is answered after this at the latest, whatever it asks for."""


@dataclass(slots=True, eq=False)
class Poll:
    """A request that waits."""

    peer: Peer
    number: int
    request: Request
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class Polls(Generic[K]):
    """Waiting requests under keys."""

    def __init__(self, expired: Callable[[Poll], None]) -> None:
        self._expired = expired
        self._by_key: dict[K, dict[Poll, None]] = {}

    def __len__(self) -> int:
        return sum(len(polls) for polls in self._by_key.values())

    def add(self, key: K, poll: Poll, wait_s: float) -> None:
        """Let a request wait; after ``wait_s`` it is taken out and ``expired`` is called."""
        patience = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        loop = asyncio.get_running_loop()
        poll.timer = loop.call_later(patience, self._expire, key, poll)
        self._by_key.setdefault(key, {})[poll] = None

    def of(self, key: K) -> list[Poll]:
        """Return who waits for a key, in the order of coming."""
        return [*self._by_key.get(key, ())]

    def all(self) -> Iterator[tuple[K, Poll]]:
        """Give everybody who waits. They may be removed meanwhile."""
        for key, polls in [*self._by_key.items()]:
            for poll in [*polls]:
                yield key, poll

    def remove(self, key: K, poll: Poll) -> None:
        """Take out a request that is answered."""
        if poll.timer is not None:
            poll.timer.cancel()
        polls = self._by_key.get(key, {})
        polls.pop(poll, None)
        if not polls:
            self._by_key.pop(key, None)

    def drop(self, peer: Peer) -> None:
        """Forget the requests of a connection that has ended."""
        for key, poll in self.all():
            if poll.peer is peer:
                self.remove(key, poll)

    def _expire(self, key: K, poll: Poll) -> None:
        self.remove(key, poll)
        self._expired(poll)
