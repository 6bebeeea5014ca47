"""Counts bindings in flight. Writers of status and events wait until it is zero, or until their
timeout.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress


class BindingsInFlight:
    """The number of bindings in flight, and since when it has been above zero.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._since = 0.0
        self.idle = asyncio.Event()
        """Set while no binding is in flight."""
        self.idle.set()

    def binding_started(self) -> None:
        if not self._count:
            self._since = self._clock()
            self.idle.clear()
        self._count += 1

    def binding_ended(self) -> None:
        self._count -= 1
        if not self._count:
            self.idle.set()

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no binding is in flight, or until bindings have been in flight for
        ``timeout_s`` seconds.
        """
        while not self.idle.is_set() and (left := self._since + timeout_s - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.idle.wait()
