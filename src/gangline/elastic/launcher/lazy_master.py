"""A master for the processes of one node, started when the first of them calls it.

Imported by every start on one node, so it imports nothing that such a start does without.
"""

import asyncio
import os
import secrets
import socket
from pathlib import Path

from gangline.elastic.launcher.master_child import PAUSE_S, MasterChild
from gangline.elastic.variables import LOCAL_MASTER_VARIABLE, SECRET_VARIABLE


class LazyMaster(MasterChild):
    """A master for the workers of this node alone, started when the first of them calls.

    The launcher listens; the child inherits the socket. So nothing runs in jobs that ask for no
    shards, and calls that come while it is started, or started again, wait in the socket.
    """

    def __init__(self, job: str, folder: Path) -> None:
        """Take the job's name, and a folder for the journal."""
        super().__init__(job, folder)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._secret = os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32)

    @property
    def environment(self) -> dict[str, str]:
        """What workers must know."""
        host, port = self._socket.getsockname()[:2]
        return {LOCAL_MASTER_VARIABLE: f"{host}:{port}", SECRET_VARIABLE: self._secret}

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._socket.close()

    async def _keep(self) -> None:
        number = str(self._socket.fileno())
        environment = {**os.environ, SECRET_VARIABLE: self._secret}
        while True:
            await self._called()
            await self._run(
                "--listen-descriptor", number, environment=environment, channel=self._socket
            )
            await asyncio.sleep(PAUSE_S)

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
