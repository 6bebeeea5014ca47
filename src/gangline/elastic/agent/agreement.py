"""How the agents of a round agree on its next attempt, without any master."""

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
"""A peer that does not answer for so long counts as gone; the master is asked then."""


class Agreement:
    """The first node decides and tells all; the others ask it to.

    It also starts its workers first, since rank 0 opens the store: whoever is there before that
    loses 0.2 to 0.7 s, after which PyTorch tries again. A node whose worker has died would be
    there before: it has nobody to stop.
    """

    def __init__(self, peers: Peers) -> None:
        """Take the way to the others."""
        self._peers = peers
        self._broadcast: asyncio.Task[bool] | None = None
        self._started = (0, -1)
        """The latest round and attempt whose first workers are known to have been started."""

    def forget(self) -> None:
        """Begin a new round, in which nothing was told yet."""
        self._broadcast = None

    async def reached(self, current_round: Round, attempt: int, reason: str) -> bool:
        """Agree that ``attempt`` is over; return whether all members go on to the next one."""
        reason = reason[:TEXT_LIMIT]
        if current_round.leads:
            self.lead(current_round, attempt, reason)
            return await self.all_heard()
        wish = Failed(current_round.world.round, attempt, reason)
        try:
            reply = await self._peers.tell(current_round.leader.agent_address, wish, PEER_TIMEOUT_S)
        except PeerError as error:
            log.warning("the first node does not answer: %s", error)
            return False
        current_round.hear(reply)
        return current_round.go.attempt > attempt

    def lead(self, current_round: Round, attempt: int, reason: str) -> None:
        """As the first node: decide on the attempt after ``attempt``, and tell all."""
        go = current_round.propose(attempt, free_port(), reason)
        if go is not None:
            self._broadcast = asyncio.create_task(self._tell_all(current_round, go))

    async def all_heard(self) -> bool:
        """Wait until all were told; return whether all have answered."""
        return await self._broadcast if self._broadcast else True

    async def tell_start(self, current_round: Round, attempt: int) -> None:
        """As the first node: tell all that its workers are started."""
        told = Started(current_round.world.round, attempt)
        await asyncio.gather(
            *(self._tell(each.agent_address, told) for each in current_round.others)
        )

    def hear_start(self, told: Started) -> None:
        """Take what the first node says; its word may come before the world does."""
        self._started = max(self._started, (told.round, told.attempt))

    def is_started(self, round_: int, attempt: int) -> bool:
        """Return whether the first node has started its workers of this attempt, or a later one."""
        return self._started >= (round_, attempt)

    async def _tell_all(self, current_round: Round, go: Go) -> bool:
        others = [each.agent_address for each in current_round.others]
        replies = await asyncio.gather(*(self._tell(each, go) for each in others))
        return not any(
            reply is None or (isinstance(reply, Heard) and reply.attempt == LEFT)
            for reply in replies
        )

    async def _tell(self, address: str, message: Go | Started) -> PeerMessage | None:
        try:
            return await self._peers.tell(address, message, PEER_TIMEOUT_S)
        except PeerError as error:
            # Who does not hear of a start waits for it only so long; a death is seen elsewhere.
            level = logging.DEBUG if isinstance(message, Started) else logging.WARNING
            log.log(level, "a node does not answer: %s", error)
            return None
