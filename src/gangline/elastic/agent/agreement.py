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
    LEFT_ROUND,
    TEXT_LIMIT,
    RestartRequest,
    RestartOrder,
    Ack,
    PeerError,
    PeerMessage,
    PeerTransport,
    WorkersStarted,
)
from gangline.elastic.agent.round import RoundState
from gangline.elastic.agent.world import free_port

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 3.0
"""A peer that does not answer within this time counts as lost; the master is asked for a world
then.
"""


class RestartCoordinator:
    """Agrees on restarts; the leader's workers also start first.

    Rank 0 opens the store. A worker that connects earlier loses 0.2 to 0.7 s until PyTorch tries
    again. The node of a dead worker would always be early: it has no workers to stop.
    """

    def __init__(self, peers: PeerTransport) -> None:
        self._peers = peers
        self._order_task: asyncio.Task[bool] | None = None
        self._latest_start = (0, -1)
        """Latest (round, attempt) whose first workers are known to have started."""

    def reset(self) -> None:
        """Begin a new round."""
        self._order_task = None

    async def agree_on_restart(self, current_round: RoundState, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over. Returns True if all members start the next one."""
        reason = reason[:TEXT_LIMIT]
        if current_round.is_leader:
            self.order_restart(current_round, attempt, reason)
            return await self.wait_for_acks()
        request = RestartRequest(current_round.world.round, attempt, reason)
        try:
            reply = await self._peers.request(
                current_round.leader.agent_address, request, PEER_TIMEOUT_S
            )
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        current_round.apply_message(reply)
        return current_round.order.attempt > attempt

    def order_restart(self, current_round: RoundState, attempt: int, reason: str) -> None:
        """As the leader, order the attempt after ``attempt``."""
        go = current_round.propose_restart(attempt, free_port(), reason)
        if go is not None:
            self._order_task = asyncio.create_task(self._broadcast_order(current_round, go))

    async def wait_for_acks(self) -> bool:
        """Wait for the replies to the last order. Returns True if all members acknowledged it."""
        return await self._order_task if self._order_task else True

    async def announce_start(self, current_round: RoundState, attempt: int) -> None:
        """As the leader, announce that the workers of this node have started."""
        announcement = WorkersStarted(current_round.world.round, attempt)
        await asyncio.gather(
            *(
                self._send(member.agent_address, announcement)
                for member in current_round.other_members
            )
        )

    def record_start(self, message: WorkersStarted) -> None:
        """Record the leader's announcement, which may arrive before the world does."""
        self._latest_start = max(self._latest_start, (message.round, message.attempt))

    def is_started(self, round_: int, attempt: int) -> bool:
        """True if the leader has started its workers of this attempt or a later one."""
        return self._latest_start >= (round_, attempt)

    async def _broadcast_order(self, current_round: RoundState, order: RestartOrder) -> bool:
        others = [member.agent_address for member in current_round.other_members]
        replies = await asyncio.gather(*(self._send(address, order) for address in others))
        return not any(
            reply is None or (isinstance(reply, Ack) and reply.attempt == LEFT_ROUND)
            for reply in replies
        )

    async def _send(
        self, address: str, message: RestartOrder | WorkersStarted
    ) -> PeerMessage | None:
        try:
            return await self._peers.request(address, message, PEER_TIMEOUT_S)
        except PeerError as error:
            # A lost announcement of a start costs at most the wait for it. A dead node is detected
            # elsewhere, so this is no reason for a warning.
            level = logging.DEBUG if isinstance(message, WorkersStarted) else logging.WARNING
            log.log(level, "a node does not answer: %s", error)
            return None
