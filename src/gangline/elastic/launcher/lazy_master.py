"""A master for the processes of one node, started when the first of them calls it.

Imported by every start on one node, so it imports nothing that such a start does without.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

from gangline.elastic.agent.process import Process, end_all, start
from gangline.elastic.variables import LOCAL_MASTER_VARIABLE, SECRET_VARIABLE

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_STOP_S = 5.0
_GRACE = "1"
"""Seconds that a broken connection may take to come back before its node counts as dead."""


class LazyMaster:
    """A master for the workers of this node alone, started when the first of them calls.

    The launcher listens; the child inherits the socket. So nothing runs in jobs that ask for no
    shards, and calls that come while it is started, or started again, wait in the socket.
    """

    def __init__(self, job: str, folder: Path) -> None:
        """Take the job's name, and a folder for the journal."""
        self._command, self._log = command(job, folder), folder / "master.log"
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._secret = os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32)
        self._child: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What workers must know."""
        host, port = self._socket.getsockname()[:2]
        return {LOCAL_MASTER_VARIABLE: f"{host}:{port}", SECRET_VARIABLE: self._secret}

    async def __aenter__(self) -> "LazyMaster":
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._child:
            await end_all([self._child], signal.SIGTERM, _STOP_S)
        self._socket.close()

    async def _keep(self) -> None:
        number = str(self._socket.fileno())
        environment = {**os.environ, SECRET_VARIABLE: self._secret}
        while True:
            await self._called()
            self._child = start(
                [*self._command, "--listen-descriptor", number], environment,
                stdout=Path(os.devnull), stderr=self._log, channel=self._socket,
            )  # fmt: skip
            code = await asyncio.shield(self._child.ended)
            log.warning("the master ended with code %d; starting it again", code)
            await asyncio.sleep(_PAUSE_S)

    async def _called(self) -> None:
        """Wait until somebody wants to connect."""
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


def command(job: str, folder: Path) -> list[str]:
    """Return the command line of a master, but for where it listens."""
    return [
        sys.executable, "-m", "gangline.elastic.master", "--job-name", job,
        "--journal", str(folder / "master.journal"), "--grace", _GRACE, "--log-level", "error",
    ]  # fmt: skip
