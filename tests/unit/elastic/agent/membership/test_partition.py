"""Partition detection: lost members, members that left, partitioned nodes."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from gangline.elastic.agent.membership.partition import (
    PARTITIONED_AFTER,
    FailureDetector,
    PartitionDetector,
)
from gangline.elastic.agent.membership.restart_consensus import (
    LEFT_ROUND,
    Ack,
    PeerMessage,
    PeerTransport,
    Round,
)
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import Welcome, WorldInfo, WorldMember

SECRET = read_job_secret({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
ROUND = 4
HERE = Ack(ROUND, 0)
PATIENCE_S = 1.6
"""A probe may take an eighth of it, which suffices on a loaded machine."""


def test_members_are_probed_after_part_of_the_silence_limit() -> None:
    silence = FailureDetector(15.0)
    assert not silence.add_silence(4.0)
    assert silence.add_silence(2.0)


def test_member_is_lost_after_silence_limit_and_several_failed_probes() -> None:
    silence = FailureDetector(15.0)
    silence.add_silence(14.0)
    assert not silence.record_timeout(1)
    silence.add_silence(2.0)
    assert not silence.record_timeout(1)
    assert silence.record_timeout(1)
    silence.record_reply(1)
    assert not silence.record_timeout(1)


def test_node_with_any_answer_is_not_partitioned() -> None:
    silence = FailureDetector(1.0)
    silence.add_silence(PARTITIONED_AFTER - 0.5)
    silence.record_reply(1)
    silence.add_silence(1.0)
    assert not silence.is_partitioned
    silence.add_silence(PARTITIONED_AFTER)
    assert silence.is_partitioned


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address without answers: the kernel drops connections to a full queue."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@dataclass
class Watched:
    """Node 1 of a round that node 0 leads, while the master is silent."""

    detector: PartitionDetector
    left: "asyncio.Future[str]"


@contextlib.asynccontextmanager
async def watching(
    reply: PeerMessage, leader: str = "", witness: str | None = None, patience_s: float = 0.8
) -> AsyncIterator[Watched]:
    """Watch a leader with a fixed reply, or at another address."""

    async def answer(_: PeerMessage) -> PeerMessage:
        return reply

    client, peers = MasterClient("127.0.0.1:9", SECRET), PeerTransport(SECRET, answer)
    client.welcome = Welcome(protocol=1, silence_s=patience_s)
    own = f"127.0.0.1:{await peers.listen()}"
    members = (
        WorldMember(0, 0, 0, 1, 0, "one", leader or own),
        WorldMember(1, 1, 1, 1, 1, "two", own),
    )
    current_round = Round(WorldInfo(ROUND, members, "one", 20000), 1, peers)
    watched = Watched(PartitionDetector(client, peers, witness), asyncio.Future())

    async def leave(round_: int, reason: str) -> None:
        assert round_ == ROUND
        if not watched.left.done():
            watched.left.set_result(reason)

    watch = asyncio.create_task(watched.detector.watch(lambda: current_round, leave))
    try:
        yield watched
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await peers.close()


async def test_member_leaves_round_that_its_leader_has_left() -> None:
    for reply in (Ack(ROUND, LEFT_ROUND), Ack(ROUND + 1, 0)):
        async with watching(reply) as node:
            assert await asyncio.wait_for(node.left, 60) == "node 0 has left this world"


async def test_silent_leader_is_lost_with_its_world(nowhere: str) -> None:
    async with watching(HERE, nowhere) as node:
        reason = await asyncio.wait_for(node.left, 60)
    assert reason == "neither the master nor node 0 answers"


async def test_answering_member_or_machine_keeps_the_world(nowhere: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refuses = f"127.0.0.1:{closed.getsockname()[1]}"
        async with (
            watching(HERE, "", nowhere, PATIENCE_S) as answered,
            watching(HERE, refuses, nowhere, PATIENCE_S) as refused,
            watching(HERE, nowhere, nowhere, PATIENCE_S) as lost,
        ):
            # The others keep their leader for the time after which the third one is partitioned.
            assert nowhere in await asyncio.wait_for(lost.detector.wait_until_partitioned(), 60)
            assert not answered.left.done()
            assert not refused.left.done()
