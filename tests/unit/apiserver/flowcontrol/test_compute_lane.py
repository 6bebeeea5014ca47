"""The lane of long computations: order, errors, cancellation."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from gangline.local.apiserver.flowcontrol.compute_lane import ComputeLane


@pytest.fixture
async def lane() -> AsyncIterator[ComputeLane]:
    lane = ComputeLane("test")

    yield lane
    lane.close()


async def test_event_loop_runs_during_a_computation(lane: ComputeLane) -> None:
    released = threading.Event()
    computation = asyncio.create_task(lane.run("a", released.wait, 60.0))
    await asyncio.sleep(0)
    released.set()  # by the event loop: a computation on its thread would wait in vain
    assert await computation


async def test_users_take_turns() -> None:
    lane = ComputeLane("test", threads=1)
    order: list[str] = []
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    await asyncio.sleep(0)
    names = ("a1", "a2", "a3", "b1")
    rest = [asyncio.create_task(lane.run(name[0], order.append, name)) for name in names]
    await asyncio.sleep(0)
    released.set()
    await asyncio.gather(first, *rest)
    assert order == ["a1", "b1", "a2", "a3"]
    lane.close()


async def test_error_of_a_computation_reaches_its_request_only(lane: ComputeLane) -> None:
    with pytest.raises(ZeroDivisionError):
        await lane.run("a", lambda: 1 // 0)
    assert await lane.run("a", lambda: 1) == 1


async def test_computation_of_a_cancelled_request_is_not_started(lane: ComputeLane) -> None:
    started: list[str] = []
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    second = asyncio.create_task(lane.run("a", started.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    released.set()
    await first
    assert await lane.run("a", lambda: 1) == 1
    assert not started


async def test_long_computation_of_one_user_does_not_delay_another_one(lane: ComputeLane) -> None:
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    second = asyncio.create_task(lane.run("a", released.is_set))
    await asyncio.sleep(0)
    assert await lane.run("b", lambda: "done") == "done"
    assert not second.done()
    released.set()
    assert await first
    assert await second  # computations of one user run one after the other
