"""Counts how often long work lets other tasks of the event loop run."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from gangline.kube import turns


def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the clock, most of a slice passes."""
    times = itertools.count(0.0, 0.75 * turns.SLICE_S)
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: next(times)))


async def longest_run(work: Callable[[Callable[[], None]], Awaitable[None]]) -> int:
    """Return how many steps ``work`` reports, at most, while another task waits for its turn."""
    steps = longest = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    working = asyncio.ensure_future(work(step))
    while not working.done():
        longest, steps = max(longest, steps), 0
        await asyncio.sleep(0)
    await working
    return max(longest, steps)
