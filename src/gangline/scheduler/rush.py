"""Counts bindings in flight. Writers of status and events wait until it is zero, or until their
timeout.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress


class Rush:
    """The number of bindings in flight, and since when it has been above zero.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._since = 0.0
        self.resting = asyncio.Event()
        """Set while no binding is in flight."""
        self.resting.set()

    def begun(self) -> None:
        if not self._under_way:
            self._since = self._clock()
            self.resting.clear()
        self._under_way += 1

    def ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.resting.set()

    async def over(self, within_s: float) -> None:
        """Wait until no binding is in flight, or until bindings have been in flight for
        ``within_s`` seconds.
        """
        while not self.resting.is_set() and (left := self._since + within_s - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.resting.wait()
