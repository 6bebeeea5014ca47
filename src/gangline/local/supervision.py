"""Restarts of components that fail, so that a failure of one never stops the others."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_S = (0.5, 30.0)
"""The first and the longest delay before a failed component is restarted, in seconds."""


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], halt: asyncio.Event | None = None
) -> None:
    """Run a component until it returns, or until ``halt`` is set after a failure."""
    rest, longest = RESTART_S
    halt = halt or asyncio.Event()
    while not halt.is_set():
        try:
            return await run()
        except Exception:  # The outermost loop of each component.
            log.exception("component failed and is restarted", extra={"component": name})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await halt.wait()
        rest = min(longest, rest * 2)
