"""Search for the rank that left a world early, over all nodes of a round.

A worker that loses a connection is a consequence. The cause may be a worker of another node, which
ended with exit code 0 and is no failure there. The leader asks all nodes, once for each attempt.
"""

import asyncio
import logging
from collections.abc import Sequence

from gangline.elastic.agent.membership.peers import (
    ExitReply,
    ExitRequest,
    PeerError,
    PeerTransport,
)
from gangline.elastic.agent.membership.restart_consensus import Round
from gangline.elastic.agent.rendezvous import WorkerControl
from gangline.elastic.agent.workers.failure_diagnosis import RankExit

log = logging.getLogger(__name__)

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
