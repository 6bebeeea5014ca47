"""The search for ranks that have ended, over three agents with real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from gangline.api.failure import failure_of_exit
from gangline.elastic.agent.failures import (
    CONSEQUENCE_CAUSE,
    RankExit,
    WorkerFailure,
    early_exit_failure,
)
from gangline.elastic.agent.membership import restart_consensus
from gangline.elastic.agent.membership.peers import (
    Ack,
    ExitRequest,
    PeerMessage,
    PeerTransport,
)
from gangline.elastic.agent.membership.restart_consensus import RankExits, Round
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

SECRET = read_job_secret({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
ROUND, ATTEMPT = 4, 2
KILLED = failure_of_exit(137)
LOST = WorkerFailure(2, 0, 12, 1, 0.0, failure_of_exit(1))


@dataclass
class Node:
    """An agent whose worker may have ended."""

    number: int
    exits_here: tuple[RankExit, ...] = ()
    attempt: int = ATTEMPT
    asked: int = 0
    is_silent: bool = False
    peers: PeerTransport = field(init=False)
    search: RankExits = field(init=False)
    round: Round = field(init=False)

    def __post_init__(self) -> None:
        self.peers = PeerTransport(SECRET, self.answer)
        self.search = RankExits(self.peers)

    def exits(self) -> Sequence[RankExit]:
        self.asked += 1
        return self.exits_here

    async def answer(self, message: PeerMessage) -> PeerMessage:
        if self.is_silent:
            await asyncio.sleep(60)
        if isinstance(message, ExitRequest):
            return await self.search.answer(message, self.round, self.attempt, self)
        return Ack(0, 0)

    async def find(self) -> set[RankExit]:
        return {*await self.search.find(self.round, ATTEMPT, self)}


@contextlib.asynccontextmanager
async def three_nodes(*exits: tuple[RankExit, ...]) -> AsyncIterator[list[Node]]:
    nodes = [Node(number, ended) for number, ended in enumerate(exits)]
    addresses = [f"127.0.0.1:{await node.peers.listen()}" for node in nodes]
    members = tuple(
        WorldMember(number, number, number, 1, number, "host", address)
        for number, address in enumerate(addresses)
    )
    for node in nodes:
        node.round = Round(WorldInfo(ROUND, members, "host", 20000), node.number, node.peers)
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.peers.close()


EARLY = RankExit(1, 11, "node1")
OWN = RankExit(2, 12, "node2", CONSEQUENCE_CAUSE)


async def test_rank_that_left_is_found_on_another_node_and_each_node_is_asked_once() -> None:
    async with three_nodes((), (EARLY,), (OWN,)) as nodes:
        assert await nodes[2].find() == {EARLY, OWN}
        assert await nodes[0].find() == {EARLY, OWN}
        assert [node.asked for node in nodes] == [1, 1, 1]


async def test_answer_of_an_attempt_that_is_over_is_the_one_collected_for_it() -> None:
    async with three_nodes((), (EARLY,), (OWN,)) as nodes:
        await nodes[0].find()
        for node in nodes[:2]:
            node.attempt = ATTEMPT + 1
        assert await nodes[2].find() == {EARLY, OWN}
        nodes[0].search = RankExits(nodes[0].peers)
        assert await nodes[2].find() == {OWN}, "only its own: the leader knows nothing"


async def test_silent_node_delays_the_restart_by_the_time_limit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart_consensus, "NODE_TIMEOUT_S", 0.1)
    async with three_nodes((), (EARLY,), (OWN,)) as nodes:
        nodes[1].is_silent = True
        assert await asyncio.wait_for(nodes[0].find(), 30) == {OWN}


def test_early_exit_is_the_cause_only_if_no_other_rank_has_failed() -> None:
    failure = early_exit_failure([OWN, EARLY], LOST)
    assert failure is not None
    assert failure.cause == "EndedEarly"
    assert failure.message == "rank 1 (pid 11) on node1; rank 2 lost its connection"
    assert early_exit_failure([OWN], LOST) is None
    assert early_exit_failure([], LOST) is None
    assert early_exit_failure([OWN, EARLY, RankExit(0, 10, "node0", KILLED.cause)], LOST) is None
