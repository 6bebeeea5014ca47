"""Restart consensus of two agents over real sockets."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gangline.elastic.agent.agreement import Agreement
from gangline.elastic.agent.peers import LEFT, Failed, Go, Heard, PeerMessage, Peers, Started
from gangline.elastic.agent.round import Round
from gangline.elastic.protocol.messages import Member, World
from gangline.elastic.protocol.seal import secret_of

SECRET = secret_of({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
ROUND, PATIENCE_S = 4, 60.0


@dataclass
class Two:
    """The two nodes of a round; node 0 leads."""

    leader: Agreement
    member: Agreement
    led: Round
    joined: Round
    member_ear: Peers


@contextlib.asynccontextmanager
async def two_nodes(member_says: PeerMessage | None = None) -> AsyncIterator[Two]:
    """Connect the two; the member may answer every message with a fixed reply."""

    async def of_leader(message: PeerMessage) -> PeerMessage:
        assert isinstance(message, Failed)
        two.leader.lead(two.led, message.attempt, message.reason)
        return two.led.go

    async def of_member(message: PeerMessage) -> PeerMessage:
        if isinstance(message, Started):
            two.member.hear_start(message)
        return member_says or two.joined.hear(message)

    peers = Peers(SECRET, of_leader), Peers(SECRET, of_member)
    first, second = [f"127.0.0.1:{await each.listen()}" for each in peers]
    members = Member(0, 0, 0, 1, 0, "one", first), Member(1, 1, 1, 1, 1, "two", second)
    world = World(ROUND, members, "one", 20000)
    agreements = [Agreement(each) for each in peers]
    two = Two(*agreements, Round(world, node_id=0), Round(world, node_id=1), peers[1])
    try:
        yield two
    finally:
        for each in peers:
            await each.close()


async def test_failure_of_either_node_gives_both_the_same_store() -> None:
    async with two_nodes() as two:
        assert await two.member.reached(two.joined, 0, "signal 9")
        assert await two.leader.all_heard()
        assert two.led.go == two.joined.go
        assert (two.led.go.attempt, two.led.go.reason) == (1, "signal 9")
        assert await two.leader.reached(two.led, 1, "signal 11")
        assert two.led.go == two.joined.go
        assert two.joined.go.attempt == 2


@pytest.mark.parametrize("answer", [None, Heard(ROUND, LEFT)], ids=["gone", "left"])
async def test_no_agreement_without_an_acknowledgement(answer: PeerMessage | None) -> None:
    async with two_nodes(answer) as two:
        if answer is None:
            await two.member_ear.close()
        assert not await two.leader.reached(two.led, 0, "signal 9")


async def test_leader_announces_start_of_its_workers() -> None:
    async with two_nodes() as two:
        assert not two.member.is_started(ROUND, 0)
        await two.leader.tell_start(two.led, 0)
        assert two.member.is_started(ROUND, 0)
        assert two.member.is_started(ROUND - 1, 7), "that round is over"
        assert not two.member.is_started(ROUND, 1)


async def test_lost_announcement_of_a_start_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_nodes() as two:
        await two.member_ear.close()
        await two.leader.tell_start(two.led, 0)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_the_leader_decides_once_on_each_attempt() -> None:
    members = Member(0, 0, 0, 1, 0, "one", "a:1"), Member(1, 1, 1, 1, 1, "two", "b:1")
    stands = Round(World(ROUND, members, "one", 20000), node_id=0)
    go = stands.propose(0, 20001, "signal 9")
    assert go == Go(ROUND, 1, "one", 20001, "signal 9")
    assert stands.propose(0, 20002, "a lost peer") is None
    assert stands.go == go
