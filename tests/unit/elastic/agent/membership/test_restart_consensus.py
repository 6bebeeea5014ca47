"""Restart consensus of two agents over real sockets."""

import asyncio
import contextlib
import logging
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
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.membership import restart_consensus
from gangline.elastic.agent.membership.restart_consensus import (
    LEFT_ROUND,
    Ack,
    ExitRequest,
    HangDiagnosis,
    PeerMessage,
    PeerTransport,
    RankExits,
    RestartOrder,
    RestartRequest,
    Round,
    WorkersStarted,
)
from gangline.elastic.agent.rendezvous import STORE_PORTS
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

SECRET = read_job_secret({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
ROUND, PATIENCE_S = 4, 60.0


@dataclass
class TwoNodes:
    """The two nodes of a round; node 0 leads."""

    leader: Round
    member: Round
    announcements: list[WorkersStarted] = field(default_factory=list)
    """Announcements that the member received."""


@contextlib.asynccontextmanager
async def two_nodes(reply: PeerMessage | None = None) -> AsyncIterator[TwoNodes]:
    """Connect the two; the member may answer every message with a fixed reply."""

    async def answer_as_leader(message: PeerMessage) -> PeerMessage:
        return two.leader.apply(message)

    async def answer_as_member(message: PeerMessage) -> PeerMessage:
        if isinstance(message, WorkersStarted):
            two.announcements.append(message)
        return reply or two.member.apply(message)

    peers = PeerTransport(SECRET, answer_as_leader), PeerTransport(SECRET, answer_as_member)
    first, second = [f"127.0.0.1:{await transport.listen()}" for transport in peers]
    members = WorldMember(0, 0, 0, 1, 0, "one", first), WorldMember(1, 1, 1, 1, 1, "two", second)
    world = WorldInfo(ROUND, members, "one", 20000)
    two = TwoNodes(Round(world, 0, peers[0]), Round(world, 1, peers[1]))
    try:
        yield two
    finally:
        for transport in peers:
            await transport.close()


async def test_failure_of_either_node_gives_both_the_same_store() -> None:
    async with two_nodes() as two:
        assert await two.member.agree_on_restart(0, "signal 9")
        assert await two.leader.wait_for_acks()
        assert two.leader.order == two.member.order
        assert (two.leader.order.attempt, two.leader.order.reason) == (1, "signal 9")
        assert await two.leader.agree_on_restart(1, "signal 11")
        assert two.leader.order == two.member.order
        assert two.member.order.attempt == 2


@pytest.mark.parametrize(
    "reply",
    [None, Ack(ROUND, LEFT_ROUND), Ack(ROUND + 1, 0), Ack(0, 0)],
    ids=["gone", "left", "in a later round", "in no round yet"],
)
async def test_no_agreement_without_an_acknowledgement(reply: PeerMessage | None) -> None:
    async with two_nodes(reply) as two:
        if reply is None:
            await two.member.peers.close()
        assert not await two.leader.agree_on_restart(0, "signal 9")


async def test_leader_announces_start_of_its_workers() -> None:
    async with two_nodes() as two:
        await two.leader.announce_start(0)
        assert two.announcements == [WorkersStarted(ROUND, 0)]


async def test_lost_announcement_of_a_start_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_nodes() as two:
        await two.member.peers.close()
        await two.leader.announce_start(0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_leader_orders_one_restart_for_each_attempt() -> None:
    async with two_nodes() as two:
        order = two.leader.apply(RestartRequest(ROUND, 0, "signal 9"))
        assert isinstance(order, RestartOrder)
        assert (order.round, order.attempt, order.store_host) == (ROUND, 1, "one")
        assert (order.reason, order.store_port in STORE_PORTS) == ("signal 9", True)
        assert two.leader.apply(RestartRequest(ROUND, 0, "a lost peer")) == order
        assert two.leader.order == order
        assert await two.leader.wait_for_acks()


async def test_messages_of_another_round_change_nothing() -> None:
    async with two_nodes() as two:
        reply = Ack(ROUND, 0)
        assert two.leader.apply(RestartRequest(ROUND - 1, 5)) == reply
        assert two.member.apply(RestartRequest(ROUND, 0)) == reply, "only the leader orders"
        assert two.member.apply(RestartOrder(ROUND + 1, 5, "one", 20001)) == reply


MEMBER = WorldMember(1, 0, 0, local_world_size=1, first_rank=0)
PEERS = PeerTransport(read_job_secret({}, "job"), None)
ALONE = Round(WorldInfo(3, (MEMBER,), "127.0.0.1", 20_000), 1, PEERS)


class Workers:
    """Workers whose stacks are collected once."""

    requests = 0
    epoch = 0

    async def rank_stacks(self) -> Sequence[RankStack]:
        self.requests += 1
        return [RankStack(0, "node", f"request {self.requests}")]


def test_stacks_are_recalled_for_their_attempt_only():
    async def scene() -> None:
        diagnosis, workers = HangDiagnosis(PEERS), Workers()
        assert await diagnosis.recall(3, 0) == ()
        seen = await diagnosis.gather_once(ALONE, 0, workers)
        assert await diagnosis.recall(3, 0) == seen == (RankStack(0, "node", "request 1"),)
        assert await diagnosis.recall(3, 1) == await diagnosis.recall(2, 0) == ()
        assert (await diagnosis.gather_once(ALONE, 1, workers))[0].where == "request 2"
        assert await diagnosis.recall(3, 0) == ()
        workers.epoch = 2  # the rank that hung was replaced
        assert (await diagnosis.gather_once(ALONE, 1, workers))[0].where == "request 3"

    asyncio.run(scene())


ROUND_RANK_EXITS, ATTEMPT = 4, 2
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
    epoch: int = 0
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
        node.round = Round(
            WorldInfo(ROUND_RANK_EXITS, members, "host", 20000), node.number, node.peers
        )
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
