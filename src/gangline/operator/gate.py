"""A limiter of concurrent writes with priorities, without starvation.

Waiting writes are ordered by arrival time plus a delay. A write with a delay of two seconds yields
to every urgent write of the next two seconds, and to no later one. Invariant: it waits a bounded
time even if urgent writes never stop.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class WriteLimiter:
    """Allows at most ``limit`` concurrent writes."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = limit
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @property
    def is_saturated(self) -> bool:
        """True if writes wait for each other."""
        return self._free == 0

    @asynccontextmanager
    async def acquire(self, delay_s: float = 0.0) -> AsyncIterator[None]:
        """Occupy one of the slots for the duration of the block."""
        await self._acquire(delay_s)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, delay_s: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        key = self._clock() + delay_s
        heapq.heappush(self._waiting, (key, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # race: the slot was assigned while this task was being cancelled
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
