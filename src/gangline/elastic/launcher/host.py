"""The master of a job that no cluster runs: a child of the launcher on the node that meets.

Should it die it is started again at once, with its journal. While its port is another's, as when
two agents of one machine meet at localhost, the child is tried again, and takes over when the
other has gone.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from pathlib import Path

from gangline.elastic.agent.rendezvous import MeetingError
from gangline.elastic.launcher.master_child import PAUSE_S, TAKEN, MasterChild
from gangline.elastic.protocol.client import split_address

log = logging.getLogger(__name__)

_LONG_PAUSE_S = 1.0
"""After so long it is tried again while its port is another's."""


class MasterHost(MasterChild):
    """Runs the master as a child, for as long as it is open."""

    def __init__(self, job: str, address: str, folder: Path) -> None:
        """Take the job's name, where to listen, and a folder for the journal."""
        super().__init__(job, folder)
        _, self._port = split_address(address)
        self.is_port_taken = False
        """Whether somebody else, perhaps a master, listened there when it was tried last."""

    async def __aexit__(self, *ending: object) -> None:
        """End the master; who met nobody hears that the port was another's."""
        await super().__aexit__(*ending)
        if self.is_port_taken and isinstance(ending[1], MeetingError):
            log.warning("another program listens on port %d of this node", self._port)

    @property
    def pid(self) -> int | None:
        """The master's process, while there is one."""
        return self._child.pid if self._child and not self._child.ended.done() else None

    async def _keep(self) -> None:
        while True:
            code = await self._run("--port", str(self._port), environment=os.environ)
            self.is_port_taken = code == TAKEN
            await asyncio.sleep(_LONG_PAUSE_S if code == TAKEN else PAUSE_S)


def is_own_address(address: str) -> bool:
    """Return whether host:port names this machine; an unknown name does not."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own(family, where[0]) for family, _, _, _, where in found)


def _is_own(family: int, host: str | int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def own_address_towards(address: str) -> str:
    """Return the address of this node that another one at ``address`` would see."""
    host, port = split_address(address)
    with contextlib.suppress(OSError):
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing: asks for the way only
            own = str(probe.getsockname()[0])
            return f"[{own}]" if ipaddress.ip_address(own).version == 6 else own
    return socket.gethostname()
