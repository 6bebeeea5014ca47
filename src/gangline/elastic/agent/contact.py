"""Whether this node is in touch with those it trains with, while the master says nothing.

A world is whole, or it is over. As long as the master answers, it says which. Without it the
members look after each other: the first of them asks all others, and they ask the first. A member
that has not answered for as long as a master would have waited is lost, and the world with it:
whoever finds that leaves it, ends its workers and waits for the master, which may have formed
another world long ago. So no two worlds of a job train side by side for longer than that.

A node that hears neither the master, nor a member, nor the API server of its cluster is cut off:
somebody else should do its part.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gangline.elastic.agent.peers import LEFT, Heard, PeerError, Peers
from gangline.elastic.agent.round import Round
from gangline.elastic.protocol.client import Client, split_address
from gangline.elastic.protocol.messages import Member

log = logging.getLogger(__name__)

CUT_OFF_AFTER = 4
"""A node that hears nobody for so many times the patience is cut off."""
_SUSPECT_AFTER = 1 / 3
"""After this share of the patience without the master, members are asked."""
_LOOKS = 8
"""So often one looks around within the patience."""
_FAILURES = 3
"""One answer that does not come is chance."""
_DEFAULT_PATIENCE_S = 15.0


@dataclass(slots=True)
class Silence:
    """How long nobody was heard. Pure."""

    patience_s: float
    master_s: float = 0.0
    """The master."""
    alone_s: float = 0.0
    """Anybody."""
    failures: dict[int, int] = field(default_factory=dict)
    """How often each member has not answered since it was last heard."""

    def passed(self, seconds: float) -> bool:
        """Say how long the master was not heard again; return whether to ask the members."""
        self.master_s += seconds
        self.alone_s += seconds
        return self.master_s >= self.patience_s * _SUSPECT_AFTER

    def heard(self, node: int) -> None:
        """A member has answered."""
        self.failures.pop(node, None)
        self.alone_s = 0.0

    def missed(self, node: int) -> bool:
        """A member has not answered; return whether it is lost."""
        self.failures[node] = self.failures.get(node, 0) + 1
        return self.master_s >= self.patience_s and self.failures[node] >= _FAILURES

    @property
    def is_cut_off(self) -> bool:
        """Whether nobody was heard for so long that nothing will come of it."""
        return self.alone_s >= CUT_OFF_AFTER * self.patience_s


class Contact:
    """Looks around while the master is silent."""

    def __init__(self, client: Client, peers: Peers, witness: str | None) -> None:
        """Take ways to the master and the members, and host:port of the cluster's API server."""
        self._client, self._peers, self._witness = client, peers, witness
        self._cut_off = asyncio.Event()

    async def cut_off(self) -> str:
        """Wait until this node is cut off, which only the node of a cluster can know; say so."""
        await self._cut_off.wait()
        return f"cut off: neither the master, nor another node, nor {self._witness} answers"

    async def watch(
        self,
        standing: Callable[[], Round | None],
        leave: Callable[[int, str], Awaitable[None]],
    ) -> None:
        """Watch for ever.

        Args:
            standing: gives the round that this node is in, or was in last.
            leave: called with a round that is over, and why.
        """
        silence, replies = Silence(self._patience_s), self._client.replies
        loop = asyncio.get_running_loop()
        while True:
            pause, before = self._patience_s / _LOOKS, loop.time()
            await asyncio.sleep(pause)
            if self._client.replies != replies:
                silence, replies = Silence(self._patience_s), self._client.replies
                self._cut_off.clear()
                continue
            # Time in which this process itself stood still is nobody's silence.
            if not silence.passed(min(loop.time() - before, 2 * pause)):
                continue
            current_round, before = standing(), loop.time()
            over = await self._look_around(silence, current_round)
            silence.passed(min(loop.time() - before, 2 * pause))
            if current_round is not None and over:
                await leave(current_round.world.round, over)
            if self._witness and silence.is_cut_off:
                self._cut_off.set()
            elif not silence.alone_s:
                self._cut_off.clear()

    @property
    def _patience_s(self) -> float:
        welcome = self._client.welcome
        return (welcome.silence_s if welcome else 0.0) or _DEFAULT_PATIENCE_S

    async def _look_around(self, silence: Silence, current_round: Round | None) -> str:
        """Ask those who can be asked; return why the round is over, if it is."""
        asked = _asked(current_round)
        *answers, is_outside = await asyncio.gather(
            *(self._ask(each, current_round) for each in asked if current_round),
            self._sees_outside(),
        )
        if is_outside:
            silence.alone_s = 0.0
        over = ""
        for member, answer in zip(asked, answers, strict=True):
            if answer is None:
                if silence.missed(member.node_id):
                    over = f"neither the master nor node {member.node_id} answers"
                continue
            silence.heard(member.node_id)
            if isinstance(answer, Heard) and current_round and _has_left(answer, current_round):
                over = f"node {member.node_id} has left this world"
        return over

    async def _ask(self, member: Member, current_round: Round | None) -> Heard | bool | None:
        """Ask a member where it stands; True: it is there and does not say; None: no answer."""
        assert current_round is not None
        wish = Heard(current_round.go.round, current_round.go.attempt)
        try:
            reply = await self._peers.tell(member.agent_address, wish, self._limit_s)
        except PeerError as error:
            # Where a port is closed somebody lives: the agent has gone, and its workers with it.
            return True if isinstance(error.__cause__, ConnectionRefusedError) else None
        return reply if isinstance(reply, Heard) else True

    async def _sees_outside(self) -> bool:
        """Whether the cluster's API server can be reached."""
        if not self._witness:
            return False
        host, port = split_address(self._witness)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limit_s):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return True
        return False

    @property
    def _limit_s(self) -> float:
        return self._patience_s / _LOOKS


def _asked(current_round: Round | None) -> Sequence[Member]:
    """Those that this node asks: so all are looked after, and nobody is asked by all at once."""
    if current_round is None:
        return ()
    return current_round.others if current_round.leads else [current_round.leader]


def _has_left(answer: Heard, current_round: Round) -> bool:
    now = current_round.world.round
    return answer.round > now or (answer.round == now and answer.attempt == LEFT)
