"""Two real agents and their master in one process, without workers: order of starts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gangline.api.failure import failure_of_exit
from gangline.elastic.agent.membership import membership
from gangline.elastic.agent.membership.membership import Membership, PendingOrders
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import NodeIdentity
from gangline.elastic.master.journal import FileJournal
from gangline.elastic.master.main import run_master
from gangline.elastic.master.settings import MasterSettings
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import Acknowledged, RestartCommand, SendCommand

SECRET = read_job_secret({"GANGLINE_JOB_SECRET": "00" * 32}, "job")
PATIENCE_S = 60.0
KILLED = failure_of_exit(137)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a master."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = MasterSettings("job", hosts=("127.0.0.1",), port=0)
    serving = run_master(settings, SECRET, FileJournal(tmp_path / "journal"), stop, port.set_result)
    task = asyncio.create_task(serving)
    yield f"127.0.0.1:{await port}"
    stop.set()
    await task


@pytest.fixture
async def nodes(master: str) -> AsyncIterator[SimpleNamespace]:
    """Two nodes that join their first world; rank 0 has got it."""

    def node(rank: int) -> Membership:
        return Membership(
            NodeIdentity("job", master, rank, rank, "127.0.0.1", 1, 2, 2, 1, 1.0, 60.0), SECRET
        )

    first, second = node(0), node(1)
    joining = asyncio.create_task(second.join())
    world = await asyncio.wait_for(first.join(), PATIENCE_S)
    yield SimpleNamespace(first=first, second=second, world=world, joining=joining)
    for member in (first, second):
        await member.leave("done")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker starts because of a timeout."""
    monkeypatch.setattr(membership, "FIRST_NODE_WAIT_S", PATIENCE_S)


async def both_run(nodes: SimpleNamespace) -> tuple[WorldSpec, WorldSpec]:
    """Report the start of both nodes' workers."""
    nodes.first.announce_start(nodes.world)
    other = await asyncio.wait_for(nodes.joining, PATIENCE_S)
    nodes.second.announce_start(other)
    return nodes.world, other


@contextlib.asynccontextmanager
async def held_back(
    work: "asyncio.Task[WorldSpec]", node: Membership, attempt: int
) -> AsyncIterator[None]:
    """Wait until a node has agreed on an attempt; at the end of the block it must still wait."""
    async with asyncio.timeout(PATIENCE_S):
        while node._round is None or node._round.order.attempt < attempt:
            await asyncio.sleep(0.01)
    yield
    assert not work.done(), "its workers are started before those of rank 0"


@pytest.mark.usefixtures("patient")
async def test_workers_of_others_wait_for_those_of_rank_0(nodes: SimpleNamespace) -> None:
    async with held_back(nodes.joining, nodes.second, 0):
        assert nodes.world.store_host == "127.0.0.1"
    first, second = await both_run(nodes)
    assert first.store_port == second.store_port

    again = asyncio.create_task(nodes.second.restart(second, KILLED))
    assert not (await asyncio.wait_for(nodes.first.wait_for_notice(), PATIENCE_S)).stops
    async with held_back(again, nodes.second, 1):
        first = await asyncio.wait_for(nodes.first.restart(first, None), PATIENCE_S)
    nodes.first.announce_start(first)
    second = await asyncio.wait_for(again, PATIENCE_S)
    assert (first.attempt, second.attempt) == (1, 1)
    assert first.store_port == second.store_port


@pytest.mark.usefixtures("patient")
async def test_waiting_node_is_notified_when_world_is_over(
    nodes: SimpleNamespace, master: str
) -> None:
    first, second = await both_run(nodes)
    again = asyncio.create_task(nodes.second.restart(second, KILLED))
    await asyncio.wait_for(nodes.first.wait_for_notice(), PATIENCE_S)
    async with held_back(again, nodes.second, 1):
        pass
    async with MasterClient(master, SECRET) as person:
        order = SendCommand(what=RestartCommand(round=first.round, reason="curious"))
        await person.ask(order, Acknowledged, timeout_s=PATIENCE_S)
    joined = await asyncio.wait_for(nodes.first.join(), PATIENCE_S)
    assert joined.round > first.round
    nodes.first.announce_start(joined)
    second = await asyncio.wait_for(again, PATIENCE_S)
    assert (second.round, second.store_port) == (joined.round, joined.store_port)


async def test_wait_for_first_node_has_a_time_limit(
    nodes: SimpleNamespace,
) -> None:
    other = await asyncio.wait_for(nodes.joining, PATIENCE_S)
    assert (other.round, other.store_port) == (nodes.world.round, nodes.world.store_port)


def test_restart_order_before_its_world_is_retained():
    orders = PendingOrders()
    orders.order_leave(3, "a node is lost")
    assert orders.notice(None) is None  # there is no round to leave
    assert orders.notice(2).reason == orders.notice(3).reason == "a node is lost"


def test_newer_world_is_not_left():
    orders = PendingOrders()
    orders.order_leave(3, "")
    assert orders.notice(4) is None
    orders.order_leave(2, "late")
    assert orders.notice(4) is None
    assert not orders.notice(3).stops


def test_stop_applies_to_any_round():
    orders = PendingOrders()
    orders.order_stop("suspended")
    orders.order_leave(9, "")
    orders.order_stop("again")
    assert all(orders.notice(number).stops for number in (None, 0, 99))
    assert orders.notice(99).reason == "suspended"
