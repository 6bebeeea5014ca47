"""Bindings under way, to which everything that is less urgent gives way."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress


class Rush:
    """How many bindings are under way, and since when there has been at least one.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._since = 0.0
        self.resting = asyncio.Event()
        """Set while no binding is under way."""
        self.resting.set()

    def begun(self) -> None:
        """Note that a binding has begun."""
        if not self._under_way:
            self._since = self._clock()
            self.resting.clear()
        self._under_way += 1

    def ended(self) -> None:
        """Note that a binding has ended, well or not."""
        self._under_way -= 1
        if not self._under_way:
            self.resting.set()

    async def over(self, within_s: float) -> None:
        """Wait until no binding is under way, or until some have been for so many seconds."""
        while not self.resting.is_set() and (left := self._since + within_s - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.resting.wait()
