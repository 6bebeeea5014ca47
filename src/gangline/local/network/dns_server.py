"""The DNS server of the cluster: UDP and TCP on one address, in front of a `DnsZone`.

Queries for other names are forwarded unchanged to the host's resolvers, each with a short timeout.
If none answers, the client gets SERVFAIL immediately and need not wait for its own timeout.
"""

import asyncio
import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gangline.local.network.dns_messages import (
    DnsAnswer,
    DnsMessageError,
    DnsQuestion,
    ResponseCode,
    build_response,
    parse_query,
)
from gangline.local.network.dns_zone import DnsZone

log = logging.getLogger(__name__)

PORT = 53
FORWARD_TIMEOUT_S = 1.0
TCP_IDLE_S = 10.0
MAX_FORWARDED = 100
TCP_LENGTH = struct.Struct(">H")
SERVER_FAILURE = DnsAnswer(ResponseCode.SERVER_FAILURE)


def host_resolvers(resolv_conf: Path = Path("/etc/resolv.conf")) -> list[str]:
    """Return the name servers of the host (IPv4 and IPv6, in order)."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [part[1] for part in fields if len(part) > 1 and part[0] == "nameserver"]


class _ReplyProtocol(asyncio.DatagramProtocol):
    """Receives the first datagram of an upstream resolver."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.reply.done():
            self.reply.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(exc)


class _QueryProtocol(asyncio.DatagramProtocol):
    """Passes UDP queries to the server."""

    transport: asyncio.DatagramTransport

    def __init__(self, server: "DnsServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's UDP transport is derived from asyncio's class.
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            question = parse_query(data)
        except DnsMessageError:
            return
        answer = self._server.answer_from_zone(question)
        if answer is None:
            self._server.forward_in_background(question, data, self.transport, addr)
        else:
            self.transport.sendto(build_response(question, answer, limit=question.udp_size), addr)


class DnsServer:
    """Answers on ``address`` until stopped. Port 0 picks a free one (tests)."""

    def __init__(
        self,
        zone: DnsZone,
        address: str,
        *,
        port: int = PORT,
        resolvers: Sequence[str] = (),
        resolver_port: int = PORT,
    ) -> None:
        self._zone = zone
        self._address = address
        self._port = port
        self._resolvers = [resolver for resolver in resolvers if resolver != address]
        self._resolver_port = resolver_port
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open both sockets.

        Raises:
            OSError: the address or port is not available.
        """
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._serve_tcp, self._address, self._port)
        self._udp, _ = await loop.create_datagram_endpoint(
            lambda: _QueryProtocol(self), local_addr=(self._address, self.port)
        )

    @property
    def port(self) -> int:
        if self._tcp is None:
            return self._port
        port: int = self._tcp.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close all sockets and cancel forwarded queries."""
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def answer_from_zone(self, question: DnsQuestion) -> DnsAnswer | None:
        """Answer from the zone; None if the query must be forwarded."""
        return self._zone.lookup(question.name, question.type)

    def forward_in_background(
        self,
        question: DnsQuestion,
        packet: bytes,
        transport: asyncio.DatagramTransport,
        addr: tuple[str, int],
    ) -> None:
        """Forward a query to the host's resolvers in the background and send their reply."""
        if len(self._tasks) >= MAX_FORWARDED:
            transport.sendto(build_response(question, SERVER_FAILURE), addr)
            return

        async def run() -> None:
            transport.sendto(await self._forward(question, packet), addr)

        self._own(asyncio.create_task(run()))

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, question: DnsQuestion, packet: bytes) -> bytes:
        for resolver in self._resolvers:
            try:
                async with asyncio.timeout(FORWARD_TIMEOUT_S):
                    return await self._ask(resolver, packet)
            except (OSError, TimeoutError):
                log.debug("resolver does not answer", extra={"resolver": resolver})
        return build_response(question, SERVER_FAILURE)

    async def _ask(self, resolver: str, packet: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        transport, waiter = await loop.create_datagram_endpoint(
            _ReplyProtocol, remote_addr=(resolver, self._resolver_port)
        )
        try:
            transport.sendto(packet)
            return await waiter.reply
        finally:
            transport.close()

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._own(task)
        try:
            while True:
                async with asyncio.timeout(TCP_IDLE_S):
                    head = await reader.readexactly(TCP_LENGTH.size)
                    packet = await reader.readexactly(TCP_LENGTH.unpack(head)[0])
                question = parse_query(packet)
                answer = self.answer_from_zone(question)
                reply = (
                    build_response(question, answer)
                    if answer
                    else await self._forward(question, packet)
                )
                writer.write(TCP_LENGTH.pack(len(reply)) + reply)
                await writer.drain()
        except (OSError, EOFError, TimeoutError, DnsMessageError):
            pass  # The client disconnected, timed out, or does not speak DNS.
        finally:
            writer.close()
