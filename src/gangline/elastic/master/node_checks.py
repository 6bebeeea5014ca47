"""Long polls of the master, and the node check, whose requests are long polls.

The check is hosted here: its waiting requests, and the clock of its coordinator. Nothing of it is
journaled: after a restart of the master nodes start the check again.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gangline.elastic.nodecheck.coordinator import CheckCoordinator, UnknownCheckError
from gangline.elastic.nodecheck.result import CheckOutcome
from gangline.elastic.protocol.messages import (
    PARTNER_LOST,
    CheckRequest,
    CheckResult,
    Reply,
    RequestRefused,
)
from gangline.elastic.protocol.server import Peer

K = TypeVar("K", bound=Hashable)

_TIMED_OUT = RequestRefused(
    reason="TimedOut", message="other nodes have not joined or reported yet"
)
MAX_WAIT_S = 300.0
"""Upper limit of the timeout that a request may ask for."""


@dataclass(slots=True, eq=False)
class LongPoll:
    peer: Peer
    number: int
    request: Any
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class LongPolls(Generic[K]):
    """Requests that wait, by what they wait for.

    A client sends a request again that was not answered, so nothing of this is persisted.
    """

    def __init__(
        self, send: Callable[[Peer, int, Reply], None], timeout_reply: Callable[[], Reply]
    ) -> None:
        self._send, self._timeout_reply = send, timeout_reply
        self._by_key: dict[K, dict[LongPoll, None]] = {}

    def reply_or_add(self, key: K, poll: LongPoll, wait_s: float, reply: Reply | None) -> None:
        """Send the reply; without one the request waits, for at most ``wait_s``."""
        if reply is not None:
            self._send(poll.peer, poll.number, reply)
            return
        patience = min(max(wait_s, 0.0), MAX_WAIT_S)
        loop = asyncio.get_running_loop()
        poll.timer = loop.call_later(patience, self._expire, key, poll)
        self._by_key.setdefault(key, {})[poll] = None

    def serve(self, reply_to: Callable[[Any], Reply | None]) -> None:
        """Answer the requests to which there is a reply now."""
        for key, poll in self.all():
            if (reply := reply_to(poll.request)) is not None:
                self.remove(key, poll)
                self._send(poll.peer, poll.number, reply)

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
        self._send(poll.peer, poll.number, self._timeout_reply())


class NodeCheckRequests:
    """The node check of one job. ``send`` answers a request."""

    def __init__(self, send: Callable[[Peer, int, Reply], None]) -> None:
        self._send = send
        self._coordinator = CheckCoordinator()
        self._polls: LongPolls[int] = LongPolls(send, lambda: _TIMED_OUT)
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> int:
        return self._coordinator.ended

    @property
    def outcomes(self) -> Mapping[int, CheckOutcome]:
        return self._coordinator.outcomes

    def handle(self, peer: Peer, number: int, request: CheckRequest | CheckResult) -> None:
        """Process a node's arrival or result, and answer now or later."""
        try:
            self._coordinator.receive(request, self._now())
        except UnknownCheckError as error:
            self._send(peer, number, RequestRefused(reason="UnknownNode", message=str(error)))
            return
        poll = LongPoll(peer, number, request)
        self._polls.reply_or_add(request.node_id, poll, request.wait_s, self._answer(request))
        self._answer_ready()

    def lost(self, node: int) -> None:
        """Process the death of a node: no other node waits for its result."""
        self._coordinator.remove_node(node, self._now())
        self._answer_ready()

    def drop(self, peer: Peer) -> None:
        self._polls.drop(peer)

    def _answer(self, request: CheckRequest | CheckResult) -> Reply | None:
        if self._coordinator.is_test_obsolete(request):
            return RequestRefused(reason=PARTNER_LOST, message="a node of the group is gone")
        return self._coordinator.answer(request)

    def _answer_ready(self) -> None:
        """Answer requests that can be answered; set the timer to the next deadline."""
        self._polls.serve(self._answer)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._coordinator.deadline is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_at(self._coordinator.deadline + 0.001, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self._coordinator.tick(self._now())
        self._answer_ready()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
