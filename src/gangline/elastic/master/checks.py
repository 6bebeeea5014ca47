"""Hosts the node check: its waiting requests, and the clock of its coordinator.

Nothing is journaled: after a restart of the master nodes start the check again.
"""

import asyncio
from collections.abc import Callable

from gangline.elastic.master.polls import Poll, Polls
from gangline.elastic.nodecheck.conductor import Conductor, UnknownCheckError
from gangline.elastic.protocol.check_messages import PARTNER_LOST
from gangline.elastic.protocol.messages import CheckResult, CheckWanted, Refused, Reply
from gangline.elastic.protocol.server import Peer


class Checks:
    """The node check of one job. ``send`` answers a request."""

    def __init__(self, send: Callable[[Peer, int, Reply], None]) -> None:
        self._send = send
        self._conductor = Conductor()
        self._polls: Polls[int] = Polls(self._expired)
        self._alarm: asyncio.TimerHandle | None = None

    def ask(self, peer: Peer, number: int, request: CheckWanted | CheckResult) -> None:
        """Process a node's arrival or result, and answer now or later."""
        try:
            self._conductor.hear(request, self._now())
        except UnknownCheckError as error:
            self._send(peer, number, Refused(reason="UnknownNode", message=str(error)))
            return
        answer = self._answer(request)
        if answer is None:
            self._polls.add(request.node_id, Poll(peer, number, request), request.wait_s)
        else:
            self._send(peer, number, answer)
        self._moved()

    def lost(self, node: int) -> None:
        """Process the death of a node: no other node waits for its result."""
        self._conductor.lost(node, self._now())
        self._moved()

    def drop(self, peer: Peer) -> None:
        self._polls.drop(peer)

    def _answer(self, request: CheckWanted | CheckResult) -> Reply | None:
        if self._conductor.is_in_vain(request):
            return Refused(reason=PARTNER_LOST, message="a node of the group is gone")
        return self._conductor.answer(request)

    def _moved(self) -> None:
        """Answer requests that can be answered, and set the timer to the coordinator's next
        deadline.
        """
        for node, poll in self._polls.all():
            assert isinstance(poll.request, CheckWanted | CheckResult)
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
        self._moved()

    def _expired(self, poll: Poll) -> None:
        refused = Refused(reason="TimedOut", message="other nodes have not joined or reported yet")
        self._send(poll.peer, poll.number, refused)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
