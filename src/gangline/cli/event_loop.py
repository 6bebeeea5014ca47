"""Garbage collection and background tasks of commands, and the event loop of components."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

GC_THRESHOLDS = (20_000, 20, 50)
"""Thresholds of Python's cyclic garbage collector for components.

Most objects of a component (requests, responses, cached objects) are freed by reference counting
or live long. With the default thresholds, collections took a tenth of the CPU time of a burst.
"""


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Switch the garbage collector off for a short time.

    For a long list, collections that find nothing take a fifth of the time, and the process exits
    before the memory would matter.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` beside the block, and cancel it at the end; its errors are ignored."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def import_aiohttp() -> None:
    """Import aiohttp without the certificates of public authorities.

    It reads them twice at its import, an eighth of the processor time that the dashboard's first
    page takes, for connections with no context of their own. Ours have one.
    """
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ |= dict.fromkeys(names, os.devnull)
    try:
        import aiohttp  # noqa: F401
    finally:
        for name in names:
            del os.environ[name]
        os.environ |= before


def serve_component(component: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a component on uvloop until SIGTERM or Ctrl-C sets its stop event."""
    import uvloop

    gc.set_threshold(*GC_THRESHOLDS)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await component(stop)

    uvloop.run(until_stopped())
