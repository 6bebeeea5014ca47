"""A master as a child process of the launcher: started, restarted, and ended with it.

Every start on one node imports this module, so it imports nothing that such a start does not need.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from gangline.elastic.agent.process import Process, end_processes, start_process
from gangline.elastic.variables import LOCAL_MASTER_VARIABLE, SECRET_VARIABLE

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

    def __init__(self, job: str, folder: Path, options: Sequence[str] = ()) -> None:
        """Take the job's name, a folder for the journal, and further options of the command."""
        self._command = [
            sys.executable, "-m", "gangline.elastic.master", "--job-name", job,
            "--journal", str(folder / "master.journal"), "--grace", _GRACE_S,
            "--log-level", "error", *options,
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


class OnDemandMaster(MasterChild):
    """A master for the workers of this node only, started by their first connection.

    The launcher listens, and the child inherits the socket. So jobs without data shards run no
    master, and connections wait in the socket while it starts or restarts.
    """

    def __init__(self, job: str, folder: Path) -> None:
        """Take the job's name, and a folder for the journal."""
        super().__init__(job, folder)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._secret = os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with the address and the secret, for workers."""
        host, port = self._socket.getsockname()[:2]
        return {LOCAL_MASTER_VARIABLE: f"{host}:{port}", SECRET_VARIABLE: self._secret}

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._socket.close()

    async def _supervise(self) -> None:
        number = str(self._socket.fileno())
        environment = {**os.environ, SECRET_VARIABLE: self._secret}
        while True:
            await self._wait_for_connection()
            await self._run_master(
                "--listen-descriptor", number, environment=environment, channel=self._socket
            )
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _wait_for_connection(self) -> None:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[None] = loop.create_future()

        def call() -> None:
            loop.remove_reader(self._socket)
            if not called.done():
                called.set_result(None)

        loop.add_reader(self._socket, call)
        try:
            await called
        finally:
            loop.remove_reader(self._socket)
