"""A bound on writes in flight that lets the urgent ones go first, without ever forgetting the rest.

Who waits is served by the time of arrival plus a handicap. A write with a handicap of two seconds
gives way to everything urgent that comes within the next two seconds, and to nothing later: so it
waits a bounded time behind a stream of urgent writes that never ends.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """Lets ``width`` writes through at the same time."""

    def __init__(self, width: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = width
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @property
    def crowded(self) -> bool:
        """Whether writes have to wait for each other."""
        return self._free == 0

    @asynccontextmanager
    async def passage(self, handicap_s: float = 0.0) -> AsyncIterator[None]:
        """Hold one of the places for the time of the block."""
        await self._enter(handicap_s)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, handicap_s: float) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        key = self._clock() + handicap_s
        heapq.heappush(self._waiting, (key, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place was given at the very moment it was no longer wanted
            raise

    def _leave(self) -> None:
        """Hand the place to the first who still waits for it."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
