"""Long work beside others in one event loop: it gives way, and ends with an event."""

import asyncio
import gc
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

SLICE_S: Final = 0.02
"""For so long work runs in one piece."""
MAX_FILL_S: Final = 60.0
"""The garbage collector is off for at most this time while caches are filled: the attempts to reach
a server that does not answer leave garbage.
"""


class Turns:
    """The slices of one piece of work; several tasks that share it take one slice together."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._until = time.monotonic() + SLICE_S
        self._is_over = False

    async def give_way(self) -> None:
        """Let all other tasks run once if the slice is over."""
        while time.monotonic() >= self._until:
            if not self._is_over:
                self._is_over = True
                asyncio.get_running_loop().call_soon(self._begin)
            await asyncio.sleep(0)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off while caches are filled: nearly all new objects are kept.

    Traversing each of them once takes a tenth of the time in which they are decoded; with the usual
    thresholds it takes as long as decoding, and each time the event loop stands still.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    timer = asyncio.get_running_loop().call_later(MAX_FILL_S, gc.enable)
    try:
        yield
    finally:
        timer.cancel()
        gc.enable()


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends or ``stop`` is set."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(stopping, task, return_exceptions=True)
