"""One event loop in a thread, for all clients of the process that have no loop of their own.

The thread starts with the first call, is a daemon, and ends when the interpreter exits. Everything
that is open in the loop is closed then. A forked child has no threads, so it starts a loop of its
own; the parent's loop is never touched there, because both processes share its descriptors.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

EXIT_TIMEOUT_S = 5.0
"""Limit of closing everything when the interpreter exits."""


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._end = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="gangline-sdk", daemon=True
        )
        self._thread.start()
        self._loop = started.result()

    def _run(self, started: "Future[asyncio.AbstractEventLoop]") -> None:
        try:
            # At the end it cancels tasks and closes generators, with what they have open.
            asyncio.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: "Future[asyncio.AbstractEventLoop]") -> None:
        started.set_result(asyncio.get_running_loop())
        await self._end.wait()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Close what is open in the loop, and end it."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(EXIT_TIMEOUT_S)


_loops: dict[int, BackgroundLoop] = {}
"""The loop of this process by its PID, and those of its parents: deleting them would use them."""
_lock = threading.Lock()


def background_loop() -> BackgroundLoop:
    """Return the loop of this process; it is started by the first call."""
    pid = os.getpid()
    with _lock:
        if pid not in _loops:
            _loops[pid] = BackgroundLoop()
        return _loops[pid]


def _stop_at_exit() -> None:
    if loop := _loops.pop(os.getpid(), None):
        loop.stop()


atexit.register(_stop_at_exit)
# A child must not inherit a lock that another thread holds: no thread would release it there.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
