"""Restart consensus: the agents of a round agree on its next attempt without the master.

The node of rank 0 leads. Another node that sees a failure sends it a request. The leader chooses a
port for the next store and sends an order to all members. Attempt numbers only rise: a request for
an attempt that is known already is answered with the current order, so concurrent requests for one
attempt result in one order.

Invariant: if a member does not acknowledge an order, the leader asks the master for a new world,
which interrupts the attempt on all members.

Search for the rank that left a world early, over all nodes of a round.

A worker that loses a connection is a consequence. The cause may be a worker of another node, which
ended with exit code 0 and is no failure there. The leader asks all nodes, once for each attempt.

Hang diagnosis over all nodes of a round: the leader requests the stacks of every node.

The stacks are collected once for each attempt, however many nodes detect the hang, so that all
nodes blame the same rank.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.membership.peers import (
    LEFT_ROUND,
    TEXT_LIMIT,
    Ack,
    ExitReply,
    ExitRequest,
    HangReport,
    PeerError,
    PeerMessage,
    PeerTransport,
    RestartOrder,
    RestartRequest,
    StackReply,
    StackRequest,
    WorkersStarted,
)
from gangline.elastic.agent.rendezvous import WorkerControl, WorldSpec, free_port
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 3.0
"""A peer that does not answer within this time is lost; the master is asked for a world then."""


@dataclass(slots=True)
class Round:
    """A round as one of its members sees it: the world, and the latest order in it."""

    world: WorldInfo
    node_id: int
    peers: PeerTransport
    order: RestartOrder = field(init=False)
    """The latest agreed attempt."""
    _acks: asyncio.Task[bool] | None = None

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

    async def agree_on_restart(self, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over. Returns True if all members start the next one."""
        request = RestartRequest(self.world.round, attempt, reason[:TEXT_LIMIT])
        if self.is_leader:
            self.apply(request)
            return await self.wait_for_acks()
        address = self.leader.agent_address
        try:
            self.apply(await self.peers.request(address, request, PEER_TIMEOUT_S))
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        return self.order.attempt > attempt

    def apply(self, message: PeerMessage) -> PeerMessage:
        """Apply an order or a request; return the reply.

        As the leader, order the attempt after the one of a request, unless there is a later order
        already. Messages of another round change nothing.
        """
        order = self.order
        match message:
            case RestartOrder(round=order.round) if message.attempt > order.attempt:
                self.order = message
            case RestartRequest(round=order.round) if self.is_leader:
                if message.attempt >= order.attempt:
                    host, reason = order.store_host, message.reason
                    self.order = RestartOrder(
                        order.round, order.attempt + 1, host, free_port(), reason
                    )
                    self._acks = asyncio.create_task(self._broadcast_order(self.order))
                return self.order
        return Ack(self.order.round, self.order.attempt)

    async def wait_for_acks(self) -> bool:
        """Wait for the replies to the last order. Returns True if all members acknowledged it."""
        return await self._acks if self._acks else True

    async def announce_start(self, attempt: int) -> None:
        """As the leader, announce that the workers of this node have started.

        Rank 0 opens the store. A worker that connects earlier loses 0.2 to 0.7 s until PyTorch
        tries again. The node of a dead worker would always be early: it has no workers to stop.
        """
        await self._send_to_others(WorkersStarted(self.world.round, attempt))

    async def _broadcast_order(self, order: RestartOrder) -> bool:
        # An agent that was stopped for a while may still lead a round that is over for the others:
        # their reply names a later round, and an attempt of this one would train alone.
        return all(
            isinstance(reply, Ack) and reply.round == order.round and reply.attempt != LEFT_ROUND
            for reply in await self._send_to_others(order)
        )

    async def _send_to_others(
        self, message: RestartOrder | WorkersStarted
    ) -> list[PeerMessage | None]:
        addresses = [member.agent_address for member in self.other_members]
        return await asyncio.gather(*(self._send(address, message) for address in addresses))

    async def _send(
        self, address: str, message: RestartOrder | WorkersStarted
    ) -> PeerMessage | None:
        try:
            return await self.peers.request(address, message, PEER_TIMEOUT_S)
        except PeerError as error:
            # A lost announcement of a start costs at most the wait for it. A dead node is detected
            # elsewhere, so this is no reason for a warning.
            level = logging.DEBUG if isinstance(message, WorkersStarted) else logging.WARNING
            log.log(level, "a node does not answer: %s", error)
            return None


NODE_TIMEOUT_S = 0.5
"""Time limit for one node's reply: the restart waits for it, and the node may be lost."""
LEADER_TIMEOUT_S = 0.8
"""Time limit for the leader's reply. After it a node only knows its own workers."""


class RankExits:
    """Collects the ranks that have ended, once for each attempt."""

    def __init__(self, peers: PeerTransport) -> None:
        self._peers = peers
        self._attempt: tuple[int, int] = (-1, -1)
        self._task: asyncio.Task[tuple[RankExit, ...]] | None = None

    async def find(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> Sequence[RankExit]:
        """Return the ranks of all nodes that answer."""
        if current_round.is_leader:
            return await self._gather_once(current_round, attempt, node)
        address = current_round.leader.agent_address
        request = ExitRequest(current_round.world.round, attempt)
        return await self._request(address, request, LEADER_TIMEOUT_S) or node.exits()

    async def answer(
        self,
        message: ExitRequest,
        current_round: Round,
        running_attempt: int,
        node: WorkerControl | None,
    ) -> ExitReply:
        """Answer another node; empty if its attempt is over here and its exits are not known."""
        attempt = message.round, message.attempt
        is_ours = attempt == (current_round.world.round, running_attempt)
        if is_ours and node is not None and message.is_from_leader:
            return ExitReply(tuple(node.exits()))
        if is_ours and node is not None and current_round.is_leader:
            return ExitReply(await self._gather_once(current_round, running_attempt, node))
        if self._task is not None and self._attempt == attempt:
            return ExitReply(await asyncio.shield(self._task))
        return ExitReply()

    async def _gather_once(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankExit, ...]:
        if self._task is None or self._attempt != (current_round.world.round, attempt):
            self._attempt = (current_round.world.round, attempt)
            self._task = asyncio.create_task(self._gather(current_round, attempt, node))
        return await asyncio.shield(self._task)

    async def _gather(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankExit, ...]:
        request = ExitRequest(current_round.world.round, attempt, is_from_leader=True)
        own = node.exits()
        others = await asyncio.gather(
            *(
                self._request(member.agent_address, request, NODE_TIMEOUT_S)
                for member in current_round.other_members
            )
        )
        return (*own, *(each for exits in others for each in exits))

    async def _request(
        self, address: str, request: ExitRequest, timeout_s: float
    ) -> Sequence[RankExit]:
        try:
            reply = await self._peers.request(address, request, timeout_s)
        except PeerError as error:
            log.debug("a node does not return its ended ranks: %s", error)
            return ()
        return reply.exits if isinstance(reply, ExitReply) else ()


STACK_REQUEST_TIMEOUT_S = 10.0
"""Time limit for one node's reply."""
HANG_DIAGNOSIS_TIMEOUT_S = 15.0
"""Time limit for the leader's reply. After it a node only knows its own workers."""


class HangDiagnosis:
    """Collects stacks of all ranks once for each attempt."""

    def __init__(self, peers: PeerTransport) -> None:
        self._peers = peers
        self._attempt: tuple[int, int] = (-1, -1)
        self._task: asyncio.Task[tuple[RankStack, ...]] | None = None

    async def rank_stacks(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> Sequence[RankStack]:
        """Return the stacks of the ranks of all nodes that answer."""
        if current_round.is_leader:
            return await self.gather_once(current_round, attempt, node)
        request = HangReport(current_round.world.round, attempt)
        try:
            address = current_round.leader.agent_address
            reply = await self._peers.request(address, request, HANG_DIAGNOSIS_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not return stacks of other nodes: %s", error)
            return await node.rank_stacks()
        known = reply.views if isinstance(reply, StackReply) else ()
        return known or await node.rank_stacks()

    async def gather_once(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankStack, ...]:
        """As the leader, collect the stacks of all nodes, once."""
        if self._task is None or self._attempt != (current_round.world.round, attempt):
            self._attempt = (current_round.world.round, attempt)
            self._task = asyncio.create_task(self._gather(current_round, attempt, node))
        return await asyncio.shield(self._task)

    async def recall(self, round_: int, attempt: int) -> tuple[RankStack, ...]:
        """Return the stacks collected for an attempt, which may be over; empty if there were none.

        A node that detects the same hang later must blame the same rank.
        """
        if self._task is None or self._attempt != (round_, attempt):
            return ()
        return await asyncio.shield(self._task)

    async def _gather(
        self, current_round: Round, attempt: int, node: WorkerControl
    ) -> tuple[RankStack, ...]:
        others = (
            self._request_stacks(member.agent_address, current_round, attempt)
            for member in current_round.other_members
        )
        own, *theirs = await asyncio.gather(node.rank_stacks(), *others)
        return (*own, *(view for seen in theirs for view in seen))

    async def _request_stacks(
        self, address: str, current_round: Round, attempt: int
    ) -> Sequence[RankStack]:
        try:
            request = StackRequest(current_round.world.round, attempt)
            reply = await self._peers.request(address, request, STACK_REQUEST_TIMEOUT_S)
        except PeerError as error:
            log.warning("a node does not return its stacks: %s", error)
            return ()
        return reply.views if isinstance(reply, StackReply) else ()
