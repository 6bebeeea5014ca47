"""Restart consensus: the agents of a round agree on its next attempt without the master.

The node of rank 0 leads. Another node that sees a failure sends it a request; the leader chooses a
port for the next store and sends an order to all members. Attempt numbers only rise, so concurrent
requests for one attempt result in one order.

Invariant: if a member does not acknowledge an order, the leader asks the master for a new world,
which interrupts the attempt on all members.
"""

import asyncio
import logging

from gangline.elastic.agent.peers import (
    LEFT,
    TEXT_LIMIT,
    Failed,
    Go,
    Heard,
    PeerError,
    PeerMessage,
    Peers,
    Started,
)
from gangline.elastic.agent.round import Round
from gangline.elastic.agent.world import free_port

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 3.0
"""A peer that does not answer within this time counts as lost; the master is asked for a world
then.
"""


class Agreement:
    """Agrees on restarts; the leader's workers also start first.

    Rank 0 opens the store. A worker that connects earlier loses 0.2 to 0.7 s until PyTorch tries
    again. The node of a dead worker would always be early: it has no workers to stop.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._broadcast: asyncio.Task[bool] | None = None
        self._started = (0, -1)
        """Latest (round, attempt) whose first workers are known to have started."""

    def forget(self) -> None:
        """Begin a new round."""
        self._broadcast = None

    async def reached(self, current_round: Round, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over. Returns True if all members start the next one."""
        reason = reason[:TEXT_LIMIT]
        if current_round.leads:
            self.lead(current_round, attempt, reason)
            return await self.all_heard()
        request = Failed(current_round.world.round, attempt, reason)
        try:
            reply = await self._peers.tell(
                current_round.leader.agent_address, request, PEER_TIMEOUT_S
            )
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        current_round.hear(reply)
        return current_round.go.attempt > attempt

    def lead(self, current_round: Round, attempt: int, reason: str) -> None:
        """As the leader, order the attempt after ``attempt``."""
        go = current_round.propose(attempt, free_port(), reason)
        if go is not None:
            self._broadcast = asyncio.create_task(self._tell_all(current_round, go))

    async def all_heard(self) -> bool:
        """Wait for the replies to the last order. Returns True if all members acknowledged it."""
        return await self._broadcast if self._broadcast else True

    async def tell_start(self, current_round: Round, attempt: int) -> None:
        """As the leader, announce that the workers of this node have started."""
        announcement = Started(current_round.world.round, attempt)
        await asyncio.gather(
            *(self._tell(member.agent_address, announcement) for member in current_round.others)
        )

    def hear_start(self, told: Started) -> None:
        """Record the leader's announcement, which may arrive before the world does."""
        self._started = max(self._started, (told.round, told.attempt))

    def is_started(self, round_: int, attempt: int) -> bool:
        """True if the leader has started its workers of this attempt or a later one."""
        return self._started >= (round_, attempt)

    async def _tell_all(self, current_round: Round, go: Go) -> bool:
        others = [member.agent_address for member in current_round.others]
        replies = await asyncio.gather(*(self._tell(address, go) for address in others))
        return not any(
            reply is None or (isinstance(reply, Heard) and reply.attempt == LEFT)
            for reply in replies
        )

    async def _tell(self, address: str, message: Go | Started) -> PeerMessage | None:
        try:
            return await self._peers.tell(address, message, PEER_TIMEOUT_S)
        except PeerError as error:
            # A lost announcement of a start costs at most the wait for it. A dead node is detected
            # elsewhere, so this is no reason for a warning.
            level = logging.DEBUG if isinstance(message, Started) else logging.WARNING
            log.log(level, "a node does not answer: %s", error)
            return None
