"""Long polls of the master, and the node check, whose requests are long polls.

The check is hosted here: its waiting requests, and the clock of its coordinator. Nothing of it is
journaled: after a restart of the master nodes start the check again.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangline.elastic.nodecheck.coordinator import CheckCoordinator, UnknownCheckError
from gangline.elastic.nodecheck.result import CheckOutcome
from gangline.elastic.protocol.messages import (
    PARTNER_LOST,
    CheckRequest,
    CheckResult,
    Reply,
    Request,
    RequestRefused,
)
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

    def add(self, key: K, poll: LongPoll, wait_s: float) -> None:
        """Store a waiting request; after ``wait_s`` it is removed and ``expired`` is called."""
        patience = min(max(wait_s, 0.0), MAX_WAIT_S)
        loop = asyncio.get_running_loop()
        poll.timer = loop.call_later(patience, self._expire, key, poll)
        self._by_key.setdefault(key, {})[poll] = None

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


class NodeCheckRequests:
    """The node check of one job. ``send`` answers a request."""

    def __init__(self, send: Callable[[Peer, int, Reply], None]) -> None:
        self._send = send
        self._conductor = CheckCoordinator()
        self._polls: LongPolls[int] = LongPolls(self._expired)
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> int:
        return self._conductor.ended

    @property
    def outcomes(self) -> Mapping[int, CheckOutcome]:
        return self._conductor.outcomes

    def handle(self, peer: Peer, number: int, request: CheckRequest | CheckResult) -> None:
        """Process a node's arrival or result, and answer now or later."""
        try:
            self._conductor.receive(request, self._now())
        except UnknownCheckError as error:
            self._send(peer, number, RequestRefused(reason="UnknownNode", message=str(error)))
            return
        answer = self._answer(request)
        if answer is None:
            self._polls.add(request.node_id, LongPoll(peer, number, request), request.wait_s)
        else:
            self._send(peer, number, answer)
        self._answer_ready()

    def lost(self, node: int) -> None:
        """Process the death of a node: no other node waits for its result."""
        self._conductor.remove_node(node, self._now())
        self._answer_ready()

    def drop(self, peer: Peer) -> None:
        self._polls.drop(peer)

    def _answer(self, request: CheckRequest | CheckResult) -> Reply | None:
        if self._conductor.is_test_obsolete(request):
            return RequestRefused(reason=PARTNER_LOST, message="a node of the group is gone")
        return self._conductor.answer(request)

    def _answer_ready(self) -> None:
        """Answer requests that can be answered; set the timer to the next deadline."""
        for node, poll in self._polls.all():
            assert isinstance(poll.request, CheckRequest | CheckResult)
            answer = self._answer(poll.request)
            if answer is not None:
                self._polls.remove(node, poll)
                self._send(poll.peer, poll.number, answer)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._conductor.deadline is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_at(self._conductor.deadline + 0.001, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self._conductor.tick(self._now())
        self._answer_ready()

    def _expired(self, poll: LongPoll) -> None:
        refused = RequestRefused(
            reason="TimedOut", message="other nodes have not joined or reported yet"
        )
        self._send(poll.peer, poll.number, refused)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
