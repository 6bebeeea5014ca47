"""Restart consensus of two agents over real sockets."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gangline.elastic.agent.membership.peers import (
    LEFT_ROUND,
    Ack,
    PeerMessage,
    PeerTransport,
    RestartOrder,
    RestartRequest,
    WorkersStarted,
)
from gangline.elastic.agent.membership.restart_consensus import Round
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
    first, second = [f"127.0.0.1:{await each.listen()}" for each in peers]
    members = WorldMember(0, 0, 0, 1, 0, "one", first), WorldMember(1, 1, 1, 1, 1, "two", second)
    world = WorldInfo(ROUND, members, "one", 20000)
    two = TwoNodes(Round(world, 0, peers[0]), Round(world, 1, peers[1]))
    try:
        yield two
    finally:
        for each in peers:
            await each.close()


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
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


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
