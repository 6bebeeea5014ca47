"""Partition detection: is this node still connected to its peers while the master is silent?

While the master answers, it decides whether a world is over. Without it the members monitor each
other: the leader probes all other members, and they probe the leader. A member that has not
answered for as long as the master would have waited is lost, and the world with it: the node that
finds this leaves the world, stops its workers and waits for the master, which may have formed
another world meanwhile.

Invariant: two worlds of one job never train concurrently for longer than the silence limit.

A node that reaches neither the master, nor a member, nor the witness (the API server of its
cluster) is partitioned: another node should replace it.
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
"""A node is partitioned after this many silence limits without any answer."""
_SUSPECT_AFTER = 1 / 3
"""Members are probed after this share of the silence limit without the master."""
_LOOKS = 8
"""Number of probes within the silence limit."""
_FAILURES = 3
"""Consecutive failed probes of a lost member: a single one may be chance."""
_DEFAULT_PATIENCE_S = 15.0


@dataclass(slots=True)
class Silence:
    """Counts the time without answers, and failed probes of each member."""

    patience_s: float
    master_s: float = 0.0
    """Seconds without an answer of the master."""
    alone_s: float = 0.0
    """Seconds without an answer of the master, a member or the witness."""
    failures: dict[int, int] = field(default_factory=dict)
    """Consecutive failed probes by node."""

    def passed(self, seconds: float) -> bool:
        """Add time without an answer of the master. Returns True if members should be probed."""
        self.master_s += seconds
        self.alone_s += seconds
        return self.master_s >= self.patience_s * _SUSPECT_AFTER

    def heard(self, node: int) -> None:
        """Record that a member answered."""
        self.failures.pop(node, None)
        self.alone_s = 0.0

    def missed(self, node: int) -> bool:
        """Record that a member did not answer. Returns True if it is lost."""
        self.failures[node] = self.failures.get(node, 0) + 1
        return self.master_s >= self.patience_s and self.failures[node] >= _FAILURES

    @property
    def is_cut_off(self) -> bool:
        """True if there was no answer at all for so long that this node is partitioned."""
        return self.alone_s >= CUT_OFF_AFTER * self.patience_s


class Contact:
    """Probes members and the witness while the master is silent."""

    def __init__(self, client: Client, peers: Peers, witness: str | None) -> None:
        self._client, self._peers, self._witness = client, peers, witness
        self._cut_off = asyncio.Event()

    async def cut_off(self) -> str:
        """Wait until this node is partitioned; return why. Never returns without a witness."""
        await self._cut_off.wait()
        return f"partitioned: neither the master, nor another node, nor {self._witness} answers"

    async def watch(
        self,
        standing: Callable[[], Round | None],
        leave: Callable[[int, str], Awaitable[None]],
    ) -> None:
        """Probe whenever the master is silent; never returns.

        Args:
            standing: returns the current or last round of this node, None before the first one.
            leave: called with the number of a round that is over, and the reason.
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
            # If this process itself was stopped, that time is no silence of the others: a pause
            # counts at most twice its length.
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
        """Probe members and witness; return why the round is over, or an empty text."""
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
        """Probe a member: its position, True if it is alive without one, None without an answer."""
        assert current_round is not None
        probe = Heard(current_round.go.round, current_round.go.attempt)
        try:
            reply = await self._peers.tell(member.agent_address, probe, self._limit_s)
        except PeerError as error:
            # A refused connection means that the machine lives, but the agent has ended, and its
            # workers with it.
            return True if isinstance(error.__cause__, ConnectionRefusedError) else None
        return reply if isinstance(reply, Heard) else True

    async def _sees_outside(self) -> bool:
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
    """Members that this node probes. All are covered, and no node is probed by all others."""
    if current_round is None:
        return ()
    return current_round.others if current_round.leads else [current_round.leader]


def _has_left(answer: Heard, current_round: Round) -> bool:
    now = current_round.world.round
    return answer.round > now or (answer.round == now and answer.attempt == LEFT)
