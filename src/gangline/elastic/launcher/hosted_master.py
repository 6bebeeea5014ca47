"""The master of a job without a cluster: a child of the launcher on the node that has its address.

If it dies it is restarted immediately, with its journal. If its port is taken, as when two agents
of one machine use localhost, the launcher tries again until the other master has ended.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.launcher.local_master import PORT_TAKEN_CODE, RESTART_PAUSE_S, MasterChild
from gangline.elastic.protocol.client import split_address

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_START_POLL_S = 0.02
_PORT_TAKEN_PAUSE_S = 1.0
"""Interval of attempts while the port is taken."""


class HostedMaster(MasterChild):
    """Runs the master as a child process."""

    def __init__(self, job: str, address: str, folder: Path, options: Sequence[str] = ()) -> None:
        """Take the job's name, the address to listen on, a folder for the journal, and options."""
        super().__init__(job, folder, options)
        _, self._port = split_address(address)
        self._listen = [f"--host={host}" for host in listen_addresses(address)]
        self.is_port_taken = False
        """True if another process, perhaps a master, listened on the port at the last attempt."""

    async def __aexit__(self, *ending: object) -> None:
        """End the master. If no rendezvous took place, report that the port was taken."""
        await super().__aexit__(*ending)
        if self.is_port_taken and isinstance(ending[1], RendezvousError):
            log.warning("another program listens on port %d of this node", self._port)

    @property
    def pid(self) -> int | None:
        """The master's process, None while there is none."""
        return self._child.pid if self._child and not self._child.ended.done() else None

    async def wait_until_listening(self) -> None:
        """Wait until a process listens on the port, so that no timeout covers this master's start.

        Returns also if it does not start in time: then the first connection fails.
        """
        host = self._listen[0].partition("=")[2] if self._listen else "127.0.0.1"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await _can_connect(host, self._port):  # noqa: ASYNC110 - a process
                    await asyncio.sleep(_START_POLL_S)

    async def _supervise(self) -> None:
        while True:
            code = await self._run_master(
                "--port", str(self._port), *self._listen, environment=os.environ
            )
            self.is_port_taken = code == PORT_TAKEN_CODE
            await asyncio.sleep(_PORT_TAKEN_PAUSE_S if code == PORT_TAKEN_CODE else RESTART_PAUSE_S)


def master_options(brain_url: str | None) -> list[str]:
    """Return the options with which a master sends the facts of a new job to a Brain."""
    return ["--brain", brain_url, "--job-uid", uuid.uuid4().hex] if brain_url else []


def is_own_address(address: str) -> bool:
    """Return whether host:port names this machine; False if the name does not resolve."""
    return bool(_own_addresses(address))


def listen_addresses(address: str) -> list[str]:
    """List the addresses on which the master of host:port must listen; none: on all.

    A machine may know its own name by a loopback address, as Debian does, while other nodes reach
    it by another one. Only ``localhost`` and literal addresses are meant for this machine alone.
    """
    host, _ = split_address(address)
    own = _own_addresses(address)
    for_others = not (host == "localhost" or _is_literal(host))
    if for_others and any(ipaddress.ip_address(each).is_loopback for each in own):
        return []
    return own


def _own_addresses(address: str) -> list[str]:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    own = [str(where[0]) for family, _, _, _, where in found if _can_bind(family, where[0])]
    return [*dict.fromkeys(own)]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _can_bind(family: int, host: str | int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


async def _can_connect(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def own_address_towards(address: str) -> str:
    """Return the address of this node as another node at ``address`` sees it."""
    host, port = split_address(address)
    with contextlib.suppress(OSError):
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing: a UDP socket only looks up the route
            own = str(probe.getsockname()[0])
            return f"[{own}]" if ipaddress.ip_address(own).version == 6 else own
    return socket.gethostname()
