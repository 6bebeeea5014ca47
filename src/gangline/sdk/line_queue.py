"""A queue of log lines from many readers to one consumer, which takes all queued lines together.

Readers wait while the queue is full, so memory is bounded for any speed of the consumer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_QUEUED_LINES = 10_000
"""Limit of lines that were read but not consumed."""


class LineQueue(Generic[T]):
    """An asyncio queue that can be closed, and that returns batches."""

    def __init__(self, most: int = MAX_QUEUED_LINES) -> None:
        self._lines: asyncio.Queue[T | None] = asyncio.Queue(most)
        self._ended = False

    def __len__(self) -> int:
        return self._lines.qsize()

    async def put(self, line: T) -> None:
        """Add a line; wait while the queue is full."""
        await self._lines.put(line)

    def close(self) -> None:
        """Close the queue. This never waits, because the consumer may have stopped."""
        self._ended = True
        with contextlib.suppress(asyncio.QueueFull):  # a waiting consumer implies an empty queue
            self._lines.put_nowait(None)

    async def batches(self) -> AsyncIterator[list[T]]:
        """Yield all lines that arrived since the last batch, at least one, until the queue is
        closed.
        """
        while not (self._ended and self._lines.empty()):
            if (line := await self._lines.get()) is None:
                return
            batch = [line]
            while not self._lines.empty() and (line := self._lines.get_nowait()) is not None:
                batch.append(line)
            yield batch
            if line is None:
                return
