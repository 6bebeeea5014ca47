"""Hosts the node check: its waiting requests, and the clock of its coordinator.

Nothing is journaled: after a restart of the master nodes start the check again.
"""

import asyncio
from collections.abc import Callable, Mapping

from gangline.elastic.master.long_polls import LongPoll, LongPolls
from gangline.elastic.nodecheck.coordinator import CheckCoordinator, UnknownCheckError
from gangline.elastic.nodecheck.result import CheckOutcome
from gangline.elastic.protocol.check_messages import PARTNER_LOST
from gangline.elastic.protocol.messages import CheckRequest, CheckResult, Reply, RequestRefused
from gangline.elastic.protocol.server import Peer


class NodeCheckRequests:
    """The node check of one job. ``send`` answers a request."""

    def __init__(self, send: Callable[[Peer, int, Reply], None]) -> None:
        self._send = send
        self._conductor = CheckCoordinator()
        self._polls: LongPolls[int] = LongPolls(self._expired)
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> int:
        """Number of checks that have ended."""
        return self._conductor.ended

    @property
    def outcomes(self) -> Mapping[int, CheckOutcome]:
        """Outcome of the last check of each node."""
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
