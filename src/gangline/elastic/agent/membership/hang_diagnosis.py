"""Hang diagnosis over all nodes of a round: the leader requests the stacks of every node.

The stacks are collected once for each attempt, however many nodes detect the hang, so that all
nodes blame the same rank.
"""

import asyncio
import logging
from collections.abc import Sequence

from gangline.elastic.agent.hang.detector import RankStack
from gangline.elastic.agent.membership.peers import (
    HangReport,
    PeerError,
    PeerTransport,
    StackReply,
    StackRequest,
)
from gangline.elastic.agent.membership.restart_consensus import Round
from gangline.elastic.agent.rendezvous import WorkerControl

log = logging.getLogger(__name__)

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
