"""Waiting on conditions: the only clock in the scenarios is a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 240.0
"""Long enough for a real kubelet on a busy machine."""


async def eventually(
    probe: Callable[[], Awaitable[T | None]], what: str, patience_s: float = PATIENCE_S
) -> T:
    """Return the result of ``probe`` once it is true.

    Raises:
        AssertionError: it was not within ``patience_s``; the message says what was waited for.
    """
    last: T | None = None
    try:
        async with asyncio.timeout(patience_s):
            while not (last := await probe()):
                await asyncio.sleep(0.1)
    except TimeoutError:
        message = f"after {patience_s:.0f} s still not: {what}; last seen: {last!r}"
        raise AssertionError(message) from None
    return last
