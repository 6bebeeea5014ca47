"""Restart consensus of two agents over real sockets."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

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
from gangline.elastic.agent.membership.restart_consensus import RestartCoordinator, RoundState
from gangline.elastic.protocol.encryption import read_job_secret
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

SECRET = read_job_secret({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
ROUND, PATIENCE_S = 4, 60.0


@dataclass
class Two:
    """The two nodes of a round; node 0 leads."""

    leader: RestartCoordinator
    member: RestartCoordinator
    led: RoundState
    joined: RoundState
    member_ear: PeerTransport


@contextlib.asynccontextmanager
async def two_nodes(member_says: PeerMessage | None = None) -> AsyncIterator[Two]:
    """Connect the two; the member may answer every message with a fixed reply."""

    async def of_leader(message: PeerMessage) -> PeerMessage:
        assert isinstance(message, RestartRequest)
        two.leader.order_restart(two.led, message.attempt, message.reason)
        return two.led.order

    async def of_member(message: PeerMessage) -> PeerMessage:
        if isinstance(message, WorkersStarted):
            two.member.record_start(message)
        return member_says or two.joined.apply_message(message)

    peers = PeerTransport(SECRET, of_leader), PeerTransport(SECRET, of_member)
    first, second = [f"127.0.0.1:{await each.listen()}" for each in peers]
    members = WorldMember(0, 0, 0, 1, 0, "one", first), WorldMember(1, 1, 1, 1, 1, "two", second)
    world = WorldInfo(ROUND, members, "one", 20000)
    agreements = [RestartCoordinator(each) for each in peers]
    two = Two(*agreements, RoundState(world, node_id=0), RoundState(world, node_id=1), peers[1])
    try:
        yield two
    finally:
        for each in peers:
            await each.close()


async def test_failure_of_either_node_gives_both_the_same_store() -> None:
    async with two_nodes() as two:
        assert await two.member.agree_on_restart(two.joined, 0, "signal 9")
        assert await two.leader.wait_for_acks()
        assert two.led.order == two.joined.order
        assert (two.led.order.attempt, two.led.order.reason) == (1, "signal 9")
        assert await two.leader.agree_on_restart(two.led, 1, "signal 11")
        assert two.led.order == two.joined.order
        assert two.joined.order.attempt == 2


@pytest.mark.parametrize("answer", [None, Ack(ROUND, LEFT_ROUND)], ids=["gone", "left"])
async def test_no_agreement_without_an_acknowledgement(answer: PeerMessage | None) -> None:
    async with two_nodes(answer) as two:
        if answer is None:
            await two.member_ear.close()
        assert not await two.leader.agree_on_restart(two.led, 0, "signal 9")


async def test_leader_announces_start_of_its_workers() -> None:
    async with two_nodes() as two:
        assert not two.member.is_started(ROUND, 0)
        await two.leader.announce_start(two.led, 0)
        assert two.member.is_started(ROUND, 0)
        assert two.member.is_started(ROUND - 1, 7), "that round is over"
        assert not two.member.is_started(ROUND, 1)


async def test_lost_announcement_of_a_start_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_nodes() as two:
        await two.member_ear.close()
        await two.leader.announce_start(two.led, 0)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_the_leader_decides_once_on_each_attempt() -> None:
    members = WorldMember(0, 0, 0, 1, 0, "one", "a:1"), WorldMember(1, 1, 1, 1, 1, "two", "b:1")
    stands = RoundState(WorldInfo(ROUND, members, "one", 20000), node_id=0)
    go = stands.propose_restart(0, 20001, "signal 9")
    assert go == RestartOrder(ROUND, 1, "one", 20001, "signal 9")
    assert stands.propose_restart(0, 20002, "a lost peer") is None
    assert stands.order == go
