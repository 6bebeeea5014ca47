"""Who is to blame for a hang, over all nodes of a round: the first of them asks all others."""

import asyncio
import logging
from collections.abc import Sequence

from gangline.elastic.agent.hang import View
from gangline.elastic.agent.peers import Hung, Look, PeerError, Peers, Seen
from gangline.elastic.agent.rendezvous import Node
from gangline.elastic.agent.round import Round

log = logging.getLogger(__name__)

LOOK_TIMEOUT_S = 10.0
"""A node may take so long to say where its workers are."""
INQUEST_TIMEOUT_S = 15.0
"""The first node may take so long to hear of all; then each knows its own workers only."""


class Inquest:
    """Gathers views once for each attempt, however many nodes find that it hangs."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._of: tuple[int, int] = (-1, -1)
        self._gathering: asyncio.Task[tuple[View, ...]] | None = None

    async def views(self, current_round: Round, attempt: int, node: Node) -> Sequence[View]:
        """Return where the workers of all nodes are, or of as many as answer."""
        if current_round.leads:
            return await self.gathered(current_round, attempt, node)
        wish = Hung(current_round.world.round, attempt)
        try:
            address = current_round.leader.agent_address
            reply = await self._peers.tell(address, wish, INQUEST_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not say where other workers are: %s", error)
            return await node.views()
        known = reply.views if isinstance(reply, Seen) else ()
        return known or await node.views()

    async def gathered(self, current_round: Round, attempt: int, node: Node) -> tuple[View, ...]:
        """As the first node: ask all, and remember what they said."""
        if self._gathering is None or self._of != (current_round.world.round, attempt):
            self._of = (current_round.world.round, attempt)
            self._gathering = asyncio.create_task(self._gather(current_round, attempt, node))
        return await asyncio.shield(self._gathering)

    async def recalled(self, round_: int, attempt: int) -> tuple[View, ...]:
        """Return what was gathered for an attempt, which may be over; nothing if nothing was.

        A node that finds a little later that the same attempt hangs is to blame the same rank.
        """
        if self._gathering is None or self._of != (round_, attempt):
            return ()
        return await asyncio.shield(self._gathering)

    async def _gather(self, current_round: Round, attempt: int, node: Node) -> tuple[View, ...]:
        others = (
            self._look(each.agent_address, current_round, attempt) for each in current_round.others
        )
        own, *theirs = await asyncio.gather(node.views(), *others)
        return (*own, *(view for seen in theirs for view in seen))

    async def _look(self, address: str, current_round: Round, attempt: int) -> Sequence[View]:
        try:
            wish = Look(current_round.world.round, attempt)
            reply = await self._peers.tell(address, wish, LOOK_TIMEOUT_S)
        except PeerError as error:
            log.warning("a node does not say where its workers are: %s", error)
            return ()
        return reply.views if isinstance(reply, Seen) else ()
