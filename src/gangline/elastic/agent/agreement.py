"""How the agents of a round agree on its next attempt, without any master."""

import asyncio
import logging

from gangline.elastic.agent import words
from gangline.elastic.agent.peers import LEFT, Failed, Go, Heard, PeerError, Peers
from gangline.elastic.agent.round import Round
from gangline.elastic.agent.world import free_port

log = logging.getLogger(__name__)

PEER_TIMEOUT_S = 3.0
"""A peer that does not answer for so long counts as gone; the master is asked then."""


class Agreement:
    """The first node decides and tells all; the others ask it to."""

    def __init__(self, peers: Peers) -> None:
        """Take the way to the others."""
        self._peers = peers
        self._broadcast: asyncio.Task[bool] | None = None

    def forget(self) -> None:
        """Begin a new round, in which nothing was told yet."""
        self._broadcast = None

    async def reached(self, stands: Round, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over; return whether all members go on to the next one."""
        reason = reason[: words.TEXT_LIMIT]
        if stands.leads:
            self.lead(stands, attempt, reason)
            return await self.all_heard()
        wish = Failed(stands.world.round, attempt, reason)
        try:
            reply = await self._peers.tell(stands.leader.agent_address, wish, PEER_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        stands.hear(reply)
        return stands.go.attempt > attempt

    def lead(self, stands: Round, attempt: int, reason: str) -> None:
        """As the first node: decide on the attempt after ``attempt``, and tell all."""
        go = stands.propose(attempt, free_port(), reason)
        if go is not None:
            self._broadcast = asyncio.create_task(self._tell_all(stands, go))

    async def all_heard(self) -> bool:
        """Wait until all were told; return whether all have answered."""
        return await self._broadcast if self._broadcast else True

    async def _tell_all(self, stands: Round, go: Go) -> bool:
        async def tell(address: str) -> bool:
            try:
                reply = await self._peers.tell(address, go, PEER_TIMEOUT_S)
            except PeerError as error:
                log.warning("a node does not answer: %s", error)
                return False
            return not (isinstance(reply, Heard) and reply.attempt == LEFT)

        return all(await asyncio.gather(*(tell(each.agent_address) for each in stands.others)))
