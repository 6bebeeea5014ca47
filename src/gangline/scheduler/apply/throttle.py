"""Counts bindings in flight. Writers of status and events wait until it stays zero, or until their
timeout.

Between two cycles no binding is in flight for some milliseconds. A writer that used them would
take the API server from the bindings of the next cycle. For the same reason writers wait for the
cycle that a change has caused: what it binds changes the statuses again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

PAUSE_S = 0.2
"""No binding is in flight for longer than this between two series of bindings."""


class BindingsInFlight:
    """The number of bindings in flight, and since when their series has lasted.

    Args:
        pause_s: a series of bindings has ended when none was in flight for so long.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, pause_s: float = PAUSE_S
    ) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._count = 0
        self._since = 0.0
        self._ending: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        """Set between two series of bindings."""
        self.idle.set()
        self._has_cycled = asyncio.Event()
        """Cleared while a change waits for its cycle."""
        self._has_cycled.set()
        self._late_writer = asyncio.Lock()

    def cycle_due(self) -> None:
        """A change has been seen: a cycle follows."""
        self._has_cycled.clear()

    def cycle_ended(self) -> None:
        """A cycle has considered all changes, and its bindings have been started."""
        self._has_cycled.set()

    def binding_started(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self.idle.is_set():
            self._since = self._clock()
            self.idle.clear()
        self._count += 1

    def binding_ended(self) -> None:
        self._count -= 1
        if not self._count:
            self._ending = asyncio.get_running_loop().call_later(self._pause_s, self.idle.set)

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no binding is in flight, or until bindings have been in flight for
        ``timeout_s`` seconds.
        """
        while not self.idle.is_set() and (left := self._since + timeout_s - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.idle.wait()

    @asynccontextmanager
    async def turn_to_write(self, timeout_s: float) -> AsyncIterator[None]:
        """Wait for the next cycle if one is due, then as ``wait_until_idle``.

        Beside bindings that last longer than ``timeout_s`` seconds there is one writer at a time:
        several would take a large part of the API server's time from them.
        """
        await self._has_cycled.wait()
        await self.wait_until_idle(timeout_s)
        if self.idle.is_set():
            yield
            return
        async with self._late_writer:
            yield
