"""A requested save on this node: the workers save and stop, then a saver writes that to storage.

Workers whose script looks for requests have half of the time to reach the end of their step. After
it, and for other scripts immediately, the newest complete save in memory is written.
"""

import asyncio
import contextlib
import json
import logging
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gangline.elastic.agent.process import StartError, end_processes, start_process
from gangline.elastic.save_request import (
    SaveOrder,
    replied_step,
    takes_orders,
    withdraw_order,
    write_order,
)
from gangline.elastic.variables import FLUSH_RESULT_VARIABLE

log = logging.getLogger(__name__)

_POLL_S = 0.02
_EVICTION_S = 30.0
"""Workers wait this much longer than the answer may take: for the eviction that follows it."""


class RequestedSave:
    """Carries out one request at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Remember how to save.

        Args:
            command: writes the newest checkpoint in memory to storage.
            environment: its variables.
        """
        self._command, self._environment = tuple(command), environment
        self._files: tuple[Path, ...] = ()

    async def run(self, request: str, wait_s: float, files: Sequence[Path]) -> int | None:
        """Save; return the step in storage, or None.

        Args:
            request: identifier of the request.
            wait_s: seconds that all of it may take.
            files: progress files of the workers.
        """
        begin = time.monotonic()
        self._files = tuple(files)
        for file in files:
            with contextlib.suppress(OSError):  # it does not answer then
                write_order(file, SaveOrder(request, wait_s + _EVICTION_S))
        await self._wait_for_workers(request, begin + wait_s / 2)
        return await self._write(begin + wait_s)

    def withdraw(self) -> None:
        """Let the workers continue."""
        files, self._files = self._files, ()
        for file in files:
            withdraw_order(file)

    async def _wait_for_workers(self, request: str, until: float) -> None:
        files = [file for file in self._files if takes_orders(file)]
        while any(replied_step(file, request) is None for file in files):
            if time.monotonic() > until or not self._files:
                log.warning("not all workers have saved on request: the newest save is written")
                return
            await asyncio.sleep(_POLL_S)

    async def _write(self, until: float) -> int | None:
        """Write the newest save to storage; return the lowest step of its targets."""
        if not self._command:
            return None
        with tempfile.TemporaryDirectory(prefix="gangline-save-") as folder:
            result = Path(folder, "result")
            environment = {**self._environment, FLUSH_RESULT_VARIABLE: str(result)}
            try:
                process = start_process(self._command, environment)
            except StartError as error:
                log.warning("the requested save is not written: %s", error)
                return None
            await asyncio.wait({process.ended}, timeout=max(until - time.monotonic(), 0.0))
            if not process.ended.done():
                log.warning("the requested save is not in storage in time")
                await end_processes([process], signal.SIGKILL, 0)
                return None
            return _lowest_step(result)


def _lowest_step(result: Path) -> int | None:
    try:
        steps = json.loads(result.read_bytes()).values()
        return min((int(step) for step in steps), default=None)
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # nothing was written, or not all of it
