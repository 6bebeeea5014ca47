"""Running coroutines from commands: short ones, and components that run until told to stop."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a short piece of work; Ctrl-C cancels it."""
    return asyncio.run(coroutine)


def serve(component: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a component on the fast event loop until SIGTERM or Ctrl-C sets its stop event."""
    import uvloop  # noqa: PLC0415 - only what runs long is worth its import

    async def until_stopped() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await component(stop)

    uvloop.run(until_stopped())
