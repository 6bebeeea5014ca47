"""A master as a child process of the launcher: started, restarted, and ended with it.

``OnDemandMaster`` serves the workers of a single node, ``HostedMaster`` a job without a cluster, on
the node that has the master's address. If its port is taken, as when two agents of one machine use
localhost, the launcher tries again until the other master has ended. Every start on one node
imports this module, so it imports nothing that such a start does not need.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from gangline.elastic.agent.process import Process, end_processes, start_process
from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.agent.settings import AgentSettings, NodeIdentity
from gangline.elastic.launcher.rendezvous_config import RendezvousConfig
from gangline.elastic.variables import (
    LOCAL_MASTER_VARIABLE,
    SECRET_VARIABLE,
    join_address,
    split_address,
)

log = logging.getLogger(__name__)

PORT_TAKEN_CODE = 3
RESTART_PAUSE_S = 0.1
_STOP_S = 5.0
_GRACE_S = "1"
"""Seconds in which a broken connection may be restored before its node counts as dead."""
_START_TIMEOUT_S = 60.0
_START_POLL_S = 0.02
_PORT_TAKEN_PAUSE_S = 1.0
_ID_BITS = 31


class MasterChild(ABC):
    """Runs masters while it is entered; ``_supervise`` decides when."""

    def __init__(self, job: str, folder: Path, options: Sequence[str] = ()) -> None:
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
            cause = self._last_line() if code > 0 else ""
            log.warning("the master ended with code %d%s; starting it again", code, cause)
        return code

    def _last_line(self) -> str:
        """Return the last line that the master has logged, which says why it failed."""
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        return next((f": {line}" for line in reversed(lines) if line.strip()), "")


class OnDemandMaster(MasterChild):
    """A master for the workers of this node only, started by their first connection.

    The launcher listens, and the child inherits the socket. So jobs without data shards run no
    master, and connections wait in the socket while it starts or restarts.
    """

    def __init__(self, job: str, folder: Path) -> None:
        super().__init__(job, folder)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._secret = os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32)

    @property
    def environment(self) -> dict[str, str]:
        host, port = self._socket.getsockname()[:2]
        return {LOCAL_MASTER_VARIABLE: join_address(host, port), SECRET_VARIABLE: self._secret}

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


class HostedMaster(MasterChild):
    """Runs the master as a child process."""

    def __init__(self, job: str, address: str, folder: Path, options: Sequence[str] = ()) -> None:
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
    if for_others and any(
        ipaddress.ip_address(address_of_host).is_loopback for address_of_host in own
    ):
        return []
    return own


def _own_addresses(address: str) -> list[str]:
    host, port = split_address(address)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    own = [str(where[0]) for family, _, _, _, where in candidates if _can_bind(family, where[0])]
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
            return str(probe.getsockname()[0])
    return socket.gethostname()


def node_identity(
    settings: AgentSettings, config: RendezvousConfig, *, pod: str = ""
) -> NodeIdentity:
    """Return this node's identity. A node without a number draws a random one."""
    assert config.master_address is not None, "a single node needs no identity"
    return NodeIdentity(
        job=settings.run_id,
        master_address=config.master_address,
        node_id=secrets.randbits(_ID_BITS) if config.node_id is None else config.node_id,
        node_rank=-1 if config.node_id is None else config.node_rank,
        host=config.local_address or own_address_towards(config.master_address),
        local_world_size=settings.local_world_size,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        node_unit=config.node_unit,
        last_call_s=config.last_call_s,
        join_timeout_s=config.join_timeout_s,
        pod=pod or settings.node_name,
        witness_address=config.witness_address,
        connect_timeout_s=config.connect_timeout_s,
    )


def single_node_identity(settings: AgentSettings) -> NodeIdentity:
    name = settings.node_name
    return NodeIdentity(settings.run_id, "", 0, 0, name, settings.local_world_size, pod=name)
