"""A master for the processes of one node, started by the first connection to it.

Every start on one node imports this module, so it imports nothing that such a start does not need.
"""

import asyncio
import os
import secrets
import socket
from pathlib import Path

from gangline.elastic.launcher.master_child import RESTART_PAUSE_S, MasterChild
from gangline.elastic.variables import LOCAL_MASTER_VARIABLE, SECRET_VARIABLE


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
        """Wait for a connection."""
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
