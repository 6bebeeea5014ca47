"""A master as a child process of the launcher: started, restarted, and ended with it.

Every start on one node imports this module, so it imports nothing that such a start does not need.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from gangline.elastic.agent.process import Process, end_processes, start_process

log = logging.getLogger(__name__)

PORT_TAKEN_CODE = 3
"""Exit code of a master whose port is taken."""
RESTART_PAUSE_S = 0.1
"""Delay before a master that has ended is restarted."""
_STOP_S = 5.0
_GRACE_S = "1"
"""Seconds in which a broken connection may be restored before its node counts as dead."""


class MasterChild(ABC):
    """Runs masters while it is entered; ``_supervise`` decides when."""

    def __init__(self, job: str, folder: Path) -> None:
        """Take the job's name, and a folder for the journal."""
        self._command = [
            sys.executable, "-m", "gangline.elastic.master", "--job-name", job,
            "--journal", str(folder / "master.journal"), "--grace", _GRACE_S, "--log-level", "error",
        ]  # fmt: skip
        self._log = folder / "master.log"
        self._child: Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._child:
            await end_processes([self._child], signal.SIGTERM, _STOP_S)

    @abstractmethod
    async def _supervise(self) -> None:
        """Run masters one after the other."""

    async def _run_master(
        self, *where: str, environment: Mapping[str, str], channel: socket.socket | None = None
    ) -> int:
        """Run a master with these arguments until it ends; return its exit code."""
        self._child = start_process(
            [*self._command, *where], environment,
            stdout=Path(os.devnull), stderr=self._log, channel=channel,
        )  # fmt: skip
        code = await asyncio.shield(self._child.ended)
        if code != PORT_TAKEN_CODE:
            log.warning("the master ended with code %d; starting it again", code)
        return code
