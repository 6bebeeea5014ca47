"""Service addresses: TCP listeners that forward connections to the endpoints of a service.

The routing table is data (`service_routes`); the forwarder opens and closes listeners to match it.
A service without a ready endpoint has no listener, so that clients are refused immediately, as on
Kubernetes. UDP ports are not forwarded.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TypeAlias

from gangline.api.core.core import Endpoints, Service
from gangline.local.network.dns_zone import HEADLESS

log = logging.getLogger(__name__)

SocketAddress: TypeAlias = tuple[str, int]
ServiceRoutes: TypeAlias = Mapping[SocketAddress, tuple[SocketAddress, ...]]
CHUNK = 1 << 16
CONNECT_TIMEOUT_S = 3.0


def service_routes(services: Iterable[tuple[Service, Endpoints | None]]) -> ServiceRoutes:
    """Map each (cluster address, port) to its ready endpoints."""
    table: dict[SocketAddress, tuple[SocketAddress, ...]] = {}
    for service, endpoints in services:
        address = service.spec.cluster_ip
        if endpoints is None or address in ("", HEADLESS):
            continue
        for port in service.spec.ports:
            if (port.protocol or "TCP") != "TCP":
                continue
            targets = tuple(sorted(_targets(endpoints, port.name)))
            if targets:
                table[address, port.port] = targets
    return table


def _targets(endpoints: Endpoints, port_name: str) -> set[SocketAddress]:
    return {
        (address.ip, port.port)
        for subset in endpoints.subsets
        for port in subset.ports
        if port.name == port_name
        for address in subset.addresses
    }


class _Listener:
    """One open service port."""

    def __init__(self, targets: tuple[SocketAddress, ...]) -> None:
        self.targets = targets
        self.server: asyncio.Server | None = None
        self._counter = count()

    def targets_in_turn(self) -> tuple[SocketAddress, ...]:
        """The targets in round-robin order, starting with the next one."""
        first = next(self._counter) % len(self.targets)
        return self.targets[first:] + self.targets[:first]


class ServiceForwarder:
    """Owns one listener for each route and copies bytes in both directions."""

    def __init__(self) -> None:
        self._listeners: dict[SocketAddress, _Listener] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def apply(self, table: ServiceRoutes) -> bool:
        """Open, change and close listeners so that they match ``table``.

        Returns False if a port is taken; the next call tries it again. A port without permission
        (low ports, without root) is not tried again.
        """
        for gone in self._listeners.keys() - table.keys():
            self._close(self._listeners.pop(gone))
        for address, targets in table.items():
            if listener := self._listeners.get(address):
                listener.targets = targets
            else:
                await self._open(address, _Listener(targets))
        return self._listeners.keys() >= table.keys()

    async def stop(self) -> None:
        """Close all listeners and abort all connections."""
        await self.apply({})
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _open(self, address: SocketAddress, listener: _Listener) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            await _proxy_connection(listener.targets_in_turn(), reader, writer)

        try:
            listener.server = await asyncio.start_server(serve, *address)
        except PermissionError:
            log.info("service port needs root: not served", extra={"address": address})
        except OSError as exc:
            log.warning("service address not opened", extra={"address": address, "error": str(exc)})
            return
        self._listeners[address] = listener

    def _close(self, listener: _Listener) -> None:
        if listener.server is not None:
            listener.server.close()


async def _proxy_connection(
    targets: tuple[SocketAddress, ...], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Connect to the first target that accepts, and copy until both sides have closed their
    streams.
    """
    try:
        far = await _connect(targets)
        if far is None:
            writer.transport.abort()
            return
        far_reader, far_writer = far
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, far_writer))
                group.create_task(_copy(far_reader, writer))
        except* OSError:
            # One side was reset: the other side must not see that as a regular end of stream.
            writer.transport.abort()
            far_writer.transport.abort()
        finally:
            far_writer.close()
    finally:
        writer.close()


async def _connect(
    targets: tuple[SocketAddress, ...],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for host, port in targets:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(host, port)
    return None


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy one direction; an end of stream is forwarded and leaves the other direction open."""
    while chunk := await source.read(CHUNK):
        sink.write(chunk)
        await sink.drain()
    if not sink.is_closing() and sink.can_write_eof():
        sink.write_eof()
