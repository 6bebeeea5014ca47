"""Lines on their way from many readers to one taker, who takes all at once that have come.

When it is full, readers wait: memory stays flat however slow the taker is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")

QUEUED_LINES = 10_000
"""Lines read but not taken yet."""


class LineQueue(Generic[T]):
    """A queue that ends."""

    def __init__(self, most: int = QUEUED_LINES) -> None:
        self._lines: asyncio.Queue[T | None] = asyncio.Queue(most)
        self._ended = False

    def __len__(self) -> int:
        """How many lines wait."""
        return self._lines.qsize()

    async def put(self, line: T) -> None:
        """Add a line, as soon as there is room."""
        await self._lines.put(line)

    def end(self) -> None:
        """Say that no line follows. It never waits: perhaps nobody takes lines any more."""
        self._ended = True
        with contextlib.suppress(asyncio.QueueFull):  # a taker who waits is woken; else none waits
            self._lines.put_nowait(None)

    async def taken(self) -> AsyncIterator[list[T]]:
        """Yield what has come since the last time, at least a line each time, until the end."""
        while not (self._ended and self._lines.empty()):
            if (line := await self._lines.get()) is None:
                return
            batch = [line]
            while not self._lines.empty() and (line := self._lines.get_nowait()) is not None:
                batch.append(line)
            yield batch
            if line is None:
                return
