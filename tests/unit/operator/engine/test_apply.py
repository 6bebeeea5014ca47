"""The limiter of the operator's writes."""

import asyncio

import pytest

from gangline.operator.engine.apply import WriteLimiter


class Line:
    """Writers that queue at a limiter with one slot, which is occupied until ``open``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gate = WriteLimiter(1, lambda: self.now)
        self.passed: list[str] = []
        self.held = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self, name: str, handicap_s: float = 0.0) -> asyncio.Task[None]:
        async def write() -> None:
            async with self.gate.acquire(handicap_s):
                self.passed.append(name)
                await self.held.wait()

        task = asyncio.create_task(write())
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def open(self) -> list[str]:
        self.held.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.passed


async def test_the_urgent_overtake_those_with_a_handicap() -> None:
    line = Line()
    for name, handicap in [("first", 0), ("service", 2), ("pod", 0), ("another pod", 0)]:
        await line.join(name, handicap)
    assert await line.open() == ["first", "pod", "another pod", "service"]


async def test_a_handicap_is_over_in_time() -> None:
    line = Line()
    await line.join("first")
    await line.join("service", 2)
    line.now = 2.5
    await line.join("late pod")
    assert await line.open() == ["first", "service", "late pod"]


async def test_equals_pass_in_the_order_they_came() -> None:
    line = Line()
    names = [f"pod {number}" for number in range(20)]
    for name in names:
        await line.join(name)
    assert await line.open() == names


async def test_it_is_crowded_only_while_all_places_are_taken() -> None:
    line = Line()
    assert not line.gate.is_saturated
    await line.join("only")
    assert line.gate.is_saturated
    await line.open()
    assert not line.gate.is_saturated


@pytest.mark.parametrize("freed", [False, True], ids=["while it waits", "as its turn comes"])
async def test_a_cancelled_writer_takes_no_place_with_it(freed: bool) -> None:
    line = Line()
    await line.join("first")
    given_up = await line.join("second")
    if freed:
        line.held.set()
        await asyncio.sleep(0)
    given_up.cancel()
    await line.open()
    assert not line.gate.is_saturated
    async with line.gate.acquire():
        pass
