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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gangline.elastic.agent.membership.restart_consensus import (
    LEFT_ROUND,
    Ack,
    PeerError,
    PeerTransport,
    Round,
)
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import WorldMember
from gangline.elastic.variables import split_address

PARTITIONED_AFTER = 4
"""A node is partitioned after this many silence limits without any answer."""
_PROBE_AFTER = 1 / 3
"""Members are probed after this share of the silence limit without the master."""
_PROBES_PER_LIMIT = 8
_MIN_FAILURES = 3
"""Consecutive failed probes of a lost member: a single one may be chance."""
_DEFAULT_SILENCE_LIMIT_S = 15.0


@dataclass(slots=True)
class FailureDetector:
    """Counts the time without answers, and failed probes of each member."""

    silence_limit_s: float
    master_silence_s: float = 0.0
    """Seconds without an answer of the master."""
    total_silence_s: float = 0.0
    """Seconds without an answer of the master, a member or the witness."""
    failures: dict[int, int] = field(default_factory=dict)

    def add_silence(self, seconds: float) -> bool:
        """Add time without an answer of the master. Returns True if members should be probed."""
        self.master_silence_s += seconds
        self.total_silence_s += seconds
        return self.master_silence_s >= self.silence_limit_s * _PROBE_AFTER

    def record_reply(self, node: int) -> None:
        self.failures.pop(node, None)
        self.total_silence_s = 0.0

    def record_timeout(self, node: int) -> bool:
        """Record that a member did not answer. Returns True if it is lost."""
        self.failures[node] = self.failures.get(node, 0) + 1
        return (
            self.master_silence_s >= self.silence_limit_s and self.failures[node] >= _MIN_FAILURES
        )

    @property
    def is_partitioned(self) -> bool:
        """True if there was no answer at all for so long that this node is partitioned."""
        return self.total_silence_s >= PARTITIONED_AFTER * self.silence_limit_s


class PartitionDetector:
    """Probes members and the witness while the master is silent."""

    def __init__(
        self, client: MasterClient, peers: PeerTransport, witness_address: str | None
    ) -> None:
        self._client, self._peers, self._witness_address = client, peers, witness_address
        self._partitioned = asyncio.Event()

    async def wait_until_partitioned(self) -> str:
        """Wait until this node is partitioned; return why. Never returns without a witness."""
        await self._partitioned.wait()
        others = f"nor another node, nor {self._witness_address}"
        return f"partitioned: neither the master, {others} answers"

    async def watch(
        self,
        get_round: Callable[[], Round | None],
        leave: Callable[[int, str], Awaitable[None]],
    ) -> None:
        """Probe whenever the master is silent; never returns.

        Args:
            leave: called with the number of a round that is over, and the reason.
        """
        silence, replies = FailureDetector(self._silence_limit_s), self._client.replies
        loop = asyncio.get_running_loop()
        while True:
            pause, before = self._silence_limit_s / _PROBES_PER_LIMIT, loop.time()
            await asyncio.sleep(pause)
            if self._client.replies != replies:
                silence, replies = FailureDetector(self._silence_limit_s), self._client.replies
                self._partitioned.clear()
                continue
            # If this process itself was stopped, that time is no silence of the others: a pause
            # counts at most twice its length.
            if not silence.add_silence(min(loop.time() - before, 2 * pause)):
                continue
            current_round, before = get_round(), loop.time()
            over = await self._probe_members(silence, current_round)
            silence.add_silence(min(loop.time() - before, 2 * pause))
            if current_round is not None and over:
                await leave(current_round.world.round, over)
            if self._witness_address and silence.is_partitioned:
                self._partitioned.set()
            elif not silence.total_silence_s:
                self._partitioned.clear()

    @property
    def _silence_limit_s(self) -> float:
        welcome = self._client.welcome
        return (welcome.silence_s if welcome else 0.0) or _DEFAULT_SILENCE_LIMIT_S

    async def _probe_members(self, detector: FailureDetector, current_round: Round | None) -> str:
        """Probe members and witness; return why the round is over, or an empty text."""
        asked = _members_to_probe(current_round)
        *answers, is_outside = await asyncio.gather(
            *(self._probe_member(member, current_round) for member in asked if current_round),
            self._is_witness_reachable(),
        )
        if is_outside:
            detector.total_silence_s = 0.0
        over = ""
        for member, answer in zip(asked, answers, strict=True):
            if answer is None:
                if detector.record_timeout(member.node_id):
                    over = f"neither the master nor node {member.node_id} answers"
                continue
            detector.record_reply(member.node_id)
            if isinstance(answer, Ack) and current_round and _has_left(answer, current_round):
                over = f"node {member.node_id} has left this world"
        return over

    async def _probe_member(
        self, member: WorldMember, current_round: Round | None
    ) -> Ack | bool | None:
        """Probe a member: its position, True if it is alive without one, None without an answer."""
        assert current_round is not None
        probe = Ack(current_round.order.round, current_round.order.attempt)
        try:
            reply = await self._peers.request(member.agent_address, probe, self._probe_timeout_s)
        except PeerError as error:
            # A refused connection means that the machine lives, but the agent has ended, and its
            # workers with it.
            return True if isinstance(error.__cause__, ConnectionRefusedError) else None
        return reply if isinstance(reply, Ack) else True

    async def _is_witness_reachable(self) -> bool:
        if not self._witness_address:
            return False
        host, port = split_address(self._witness_address)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._probe_timeout_s):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return True
        return False

    @property
    def _probe_timeout_s(self) -> float:
        return self._silence_limit_s / _PROBES_PER_LIMIT


def _members_to_probe(current_round: Round | None) -> Sequence[WorldMember]:
    """Members that this node probes. All are covered, and no node is probed by all others."""
    if current_round is None:
        return ()
    return current_round.other_members if current_round.is_leader else [current_round.leader]


def _has_left(answer: Ack, current_round: Round) -> bool:
    now = current_round.world.round
    return answer.round > now or (answer.round == now and answer.attempt == LEFT_ROUND)
