"""Restart consensus: the agents of a round agree on its next attempt without the master.

The node of rank 0 leads. Another node that sees a failure sends it a request. The leader chooses a
port for the next store and sends an order to all members. Attempt numbers only rise: a request for
an attempt that is known already is answered with the current order, so concurrent requests for one
attempt result in one order.

Invariant: if a member does not acknowledge an order, the leader asks the master for a new world,
which interrupts the attempt on all members.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from gangline.elastic.agent.membership.peers import (
    LEFT_ROUND,
    TEXT_LIMIT,
    Ack,
    PeerError,
    PeerMessage,
    PeerTransport,
    RestartOrder,
    RestartRequest,
    WorkersStarted,
)
from gangline.elastic.agent.world import WorldSpec, free_port
from gangline.elastic.protocol.messages import WorldInfo as WorldMessage
from gangline.elastic.protocol.messages import WorldMember


@dataclass(slots=True)
class RoundState:
    """A round, and the latest order in it."""

    world: WorldMessage
    node_id: int
    order: RestartOrder = field(init=False)
    """The latest agreed attempt."""

    def __post_init__(self) -> None:
        world = self.world
        self.order = RestartOrder(world.round, world.attempt, world.store_host, world.store_port)

    @property
    def member(self) -> WorldMember:
        return next(member for member in self.world.members if member.node_id == self.node_id)

    @property
    def leader(self) -> WorldMember:
        """The node of rank 0: it opens the store, so it decides where the next one is."""
        return self.world.members[0]

    @property
    def is_leader(self) -> bool:
        return self.leader.node_id == self.node_id

    @property
    def other_members(self) -> list[WorldMember]:
        return [member for member in self.world.members if member.node_id != self.node_id]

    def world_spec(self, restarts_before: int) -> WorldSpec:
        """Return the world of the current attempt for the workers.

        Args:
            restarts_before: restarts of the job before this round.
        """
        return WorldSpec(
            attempt=restarts_before + self.order.attempt,
            group_rank=self.member.group_rank,
            group_world_size=len(self.world.members),
            first_rank=self.member.first_rank,
            world_size=self.world.world_size,
            store_host=self.order.store_host,
            store_port=self.order.store_port,
            round=self.world.round,
        )

    def propose_restart(self, attempt: int, store_port: int, reason: str) -> RestartOrder | None:
        """As the leader, order the attempt after ``attempt``; None if there is a later order."""
        if attempt < self.order.attempt:
            return None
        self.order = next_order(self.order, self.order.attempt + 1, store_port, reason)
        return self.order

    def apply_message(self, message: PeerMessage) -> PeerMessage:
        """Apply an order of the leader; messages of another round change nothing."""
        newer = isinstance(message, RestartOrder) and message.round == self.order.round
        if newer and isinstance(message, RestartOrder) and message.attempt > self.order.attempt:
            self.order = message
        return Ack(self.order.round, self.order.attempt)

    def is_current_failure(self, message: RestartRequest) -> bool:
        """True if a failure belongs to the current attempt."""
        return message.round == self.order.round and message.attempt >= self.order.attempt


def next_order(order: RestartOrder, attempt: int, store_port: int, reason: str) -> RestartOrder:
    return RestartOrder(order.round, attempt, order.store_host, store_port, reason)


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
