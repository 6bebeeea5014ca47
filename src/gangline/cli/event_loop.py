"""Running coroutines from commands: short ones, and components that run until told to stop."""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""How many new objects it takes until a component looks for garbage, and how rarely it looks among
older ones. What a component makes in numbers (requests, answers, copies of objects) goes by itself
or stays for long; to look through it took a tenth of the processor time of a burst."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a short piece of work; Ctrl-C cancels it."""
    return asyncio.run(coroutine)


def run_briefly(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run work that ends soon, without looking for garbage meanwhile.

    To look through thousands of objects of which none is garbage is a fifth of the time that a
    long list takes, and the process ends before it would matter.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return run(coroutine)
    finally:
        if collecting:
            gc.enable()


def serve(component: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a component on the fast event loop until SIGTERM or Ctrl-C sets its stop event."""
    import uvloop  # noqa: PLC0415 - only what runs long is worth its import

    gc.set_threshold(*GARBAGE_THRESHOLDS)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await component(stop)

    uvloop.run(until_stopped())
