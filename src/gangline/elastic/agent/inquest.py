"""Hang diagnosis over all nodes of a round: the leader requests the stacks of every node.

The stacks are collected once for each attempt, however many nodes detect the hang, so that all
nodes blame the same rank.
"""

import asyncio
import logging
from collections.abc import Sequence

from gangline.elastic.agent.hang import View
from gangline.elastic.agent.peers import Hung, Look, PeerError, Peers, Seen
from gangline.elastic.agent.rendezvous import Node
from gangline.elastic.agent.round import Round

log = logging.getLogger(__name__)

LOOK_TIMEOUT_S = 10.0
"""Time limit for one node's reply."""
INQUEST_TIMEOUT_S = 15.0
"""Time limit for the leader's reply. After it a node only knows its own workers."""


class Inquest:
    """Collects stacks of all ranks once for each attempt."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._of: tuple[int, int] = (-1, -1)
        self._gathering: asyncio.Task[tuple[View, ...]] | None = None

    async def views(self, current_round: Round, attempt: int, node: Node) -> Sequence[View]:
        """Return the stacks of the ranks of all nodes that answer."""
        if current_round.leads:
            return await self.gathered(current_round, attempt, node)
        request = Hung(current_round.world.round, attempt)
        try:
            address = current_round.leader.agent_address
            reply = await self._peers.tell(address, request, INQUEST_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not return stacks of other nodes: %s", error)
            return await node.views()
        known = reply.views if isinstance(reply, Seen) else ()
        return known or await node.views()

    async def gathered(self, current_round: Round, attempt: int, node: Node) -> tuple[View, ...]:
        """As the leader, collect the stacks of all nodes, once."""
        if self._gathering is None or self._of != (current_round.world.round, attempt):
            self._of = (current_round.world.round, attempt)
            self._gathering = asyncio.create_task(self._gather(current_round, attempt, node))
        return await asyncio.shield(self._gathering)

    async def recalled(self, round_: int, attempt: int) -> tuple[View, ...]:
        """Return the stacks collected for an attempt, which may be over; empty if there were none.

        A node that detects the same hang later must blame the same rank.
        """
        if self._gathering is None or self._of != (round_, attempt):
            return ()
        return await asyncio.shield(self._gathering)

    async def _gather(self, current_round: Round, attempt: int, node: Node) -> tuple[View, ...]:
        others = (
            self._look(member.agent_address, current_round, attempt)
            for member in current_round.others
        )
        own, *theirs = await asyncio.gather(node.views(), *others)
        return (*own, *(view for seen in theirs for view in seen))

    async def _look(self, address: str, current_round: Round, attempt: int) -> Sequence[View]:
        try:
            request = Look(current_round.world.round, attempt)
            reply = await self._peers.tell(address, request, LOOK_TIMEOUT_S)
        except PeerError as error:
            log.warning("a node does not return its stacks: %s", error)
            return ()
        return reply.views if isinstance(reply, Seen) else ()
