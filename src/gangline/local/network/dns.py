"""DNS of the cluster: the zone of its names, and the server in front of it (UDP and TCP).

The zone is updated by one service, endpoints object or pod at a time. Names follow the Kubernetes
DNS specification: ``SERVICE.NS.svc.cluster.local``, ``HOST.SERVICE.NS.svc...`` for the pods of a
headless service, ``_PORT._PROTOCOL.SERVICE...`` for SRV, ``1-2-3-4.NS.pod.cluster.local``, and the
reverse of each address.

A query has exactly one question, as all stub resolvers send it; the server drops any other packet.
Queries for other names are forwarded unchanged to the host's resolvers, each with a short timeout.
If none answers, the client gets SERVFAIL immediately and need not wait for its own timeout.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import dnslib
from dnslib import QTYPE, RCODE

from gangline.api.core.service import Endpoints, Service
from gangline.local.network.addresses import DOMAIN, RESOLV_CONF, read_text

PLAIN_UDP_SIZE = 512
TTL_SECONDS = 5
A, CNAME, PTR, SRV = QTYPE.A, QTYPE.CNAME, QTYPE.PTR, QTYPE.SRV


class DnsMessageError(ValueError):
    """The packet is not a query that can be answered."""


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A query with one question."""

    name: str
    """The name in lower case, without the trailing dot."""

    type: int
    message: dnslib.DNSRecord
    """The parsed message; its question preserves the case of letters, which resolvers compare."""

    udp_size: int
    """The response size that the client accepts over UDP."""


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """One record of an answer; an empty ``name`` means the queried name."""

    type: int
    value: str
    """An address (A) or a name (CNAME, PTR, SRV)."""

    name: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """Response code and records."""

    code: int = RCODE.NOERROR
    records: tuple[DnsRecord, ...] = ()
    alias: str = ""
    """A name outside the cluster whose records belong to the answer; empty for none."""


def parse_query(packet: bytes) -> DnsQuestion:
    """Parse a query. Raises DnsMessageError: it is malformed, is a response, or has not exactly one
    question.
    """
    try:
        message = dnslib.DNSRecord.parse(packet)
    # dnslib wraps most parse errors, but follows chains of compression pointers recursively.
    except (dnslib.DNSError, dnslib.BufferError, ValueError, IndexError, RecursionError) as error:
        raise DnsMessageError(str(error)) from error
    if message.header.qr or len(message.questions) != 1:
        raise DnsMessageError("not a single question")
    name = str(message.q.qname).rstrip(".").lower()
    # The class field of an OPT record is the UDP size of the client (EDNS).
    sizes = [extra.rclass for extra in message.ar if extra.rtype == dnslib.QTYPE.OPT]
    return DnsQuestion(name, message.q.qtype, message, max(PLAIN_UDP_SIZE, *sizes, 0))


def build_response(
    question: DnsQuestion,
    answer: DnsAnswer,
    *,
    limit: int | None = None,
    further: Sequence[dnslib.RR] = (),
) -> bytes:
    """Build the response; one above ``limit`` bytes is truncated for a retry over TCP."""
    query = question.message
    header = dnslib.DNSHeader(
        id=query.header.id, qr=1, aa=1, ra=1, rd=query.header.rd, rcode=answer.code
    )
    response = dnslib.DNSRecord(header, q=query.q)
    for record in answer.records:
        name = record.name or query.q.qname
        response.add_answer(dnslib.RR(name, record.type, rdata=_payload(record), ttl=TTL_SECONDS))
    response.add_answer(*further)
    packed: bytes = response.pack()
    if limit is not None and len(packed) > limit:
        header.tc = 1
        packed = dnslib.DNSRecord(header, q=query.q).pack()
    return packed


def _payload(record: DnsRecord) -> dnslib.RD:
    if record.type == SRV:
        return dnslib.SRV(priority=0, weight=100, port=record.port, target=record.value)
    return {A: dnslib.A, CNAME: dnslib.CNAME, PTR: dnslib.PTR}[record.type](record.value)


REVERSE = ".in-addr.arpa"
NAME_ERROR = DnsAnswer(RCODE.NXDOMAIN)
SERVER_FAILURE = DnsAnswer(RCODE.SERVFAIL)
MAX_ALIASES = 8
HEADLESS = "None"


@dataclass(frozen=True, slots=True)
class ServiceRecords:
    """The records of one service."""

    forward: Mapping[str, tuple[DnsRecord, ...]] = field(default_factory=dict)
    reverse: Mapping[str, str] = field(default_factory=dict)


def dashed_address(ip: str) -> str:
    """Write an address as it appears in names: ``10-1-2-3``."""
    return ip.replace(".", "-")


def service_dns_name(service: Service) -> str:
    return f"{service.metadata.name}.{service.metadata.namespace}.svc.{DOMAIN}"


def service_records(service: Service, endpoints: Endpoints | None) -> ServiceRecords:
    """Return the records of a service: its cluster IP, every endpoint's address if it is
    headless, or the name that it is an alias for.
    """
    full = service_dns_name(service)
    if service.spec.type == "ExternalName":
        name = service.spec.external_name.rstrip(".").lower()
        return ServiceRecords({full: (DnsRecord(CNAME, name),)} if name else {})
    address = service.spec.cluster_ip
    if address and address != HEADLESS:
        forward = {full: (DnsRecord(A, address),)}
        for port in service.spec.ports:
            if port.name:
                forward[_srv_name(port.name, port.protocol, full)] = (
                    DnsRecord(SRV, full, port=port.port),
                )
        return ServiceRecords(forward, {address: full})
    return _headless(full, endpoints) if address == HEADLESS else ServiceRecords()


def _headless(full: str, endpoints: Endpoints | None) -> ServiceRecords:
    forward: dict[str, list[DnsRecord]] = {full: []}
    reverse: dict[str, str] = {}
    for subset in endpoints.subsets if endpoints else ():
        for address in subset.addresses:
            own = f"{(address.hostname or dashed_address(address.ip))}.{full}"
            forward[full].append(DnsRecord(A, address.ip))
            forward.setdefault(own, []).append(DnsRecord(A, address.ip))
            reverse[address.ip] = own
            for port in subset.ports:
                if port.name:
                    records = forward.setdefault(_srv_name(port.name, port.protocol, full), [])
                    records.append(DnsRecord(SRV, own, port=port.port))
    unique = {name: tuple(dict.fromkeys(records)) for name, records in forward.items() if records}
    return ServiceRecords(unique, reverse)


def _srv_name(port: str, protocol: str, full: str) -> str:
    return f"_{port}._{(protocol or 'TCP').lower()}.{full}"


class DnsZone:
    """All names of one cluster."""

    def __init__(self) -> None:
        self._services: dict[tuple[str, str], ServiceRecords] = {}
        self._forward: dict[str, tuple[DnsRecord, ...]] = {}
        self._reverse: dict[str, dict[tuple[str, str], str]] = {}
        self._pods: dict[str, str] = {}

    def set_service(self, key: tuple[str, str], records: ServiceRecords | None) -> bool:
        """Replace the records of the service ``key`` (namespace, name); return whether they
        changed.
        """
        old = self._services.pop(key, ServiceRecords())
        new = records or ServiceRecords()
        for name in old.forward:
            self._forward.pop(name, None)
        for ip in old.reverse:
            owners = self._reverse.get(ip, {})
            owners.pop(key, None)
            if not owners:
                self._reverse.pop(ip, None)
        if records is not None:
            self._services[key] = new
            self._forward.update(new.forward)
            for ip, name in new.reverse.items():
                self._reverse.setdefault(ip, {})[key] = name
        return old != new

    def set_pod(self, ip: str, namespace: str | None) -> None:
        """Record the namespace of the pod with address ``ip``; None: there is no such pod."""
        if namespace is None:
            self._pods.pop(ip, None)
        else:
            self._pods[ip] = namespace

    def lookup(self, name: str, kind: int) -> DnsAnswer | None:
        """Answer a question; None means that the name is outside the cluster."""
        if name.endswith(REVERSE):
            return self._lookup_reverse(name, kind)
        if name == DOMAIN or name.endswith(f".{DOMAIN}"):
            return self._answer(self._records_of(name), kind)
        # The client has tried a name without a dot with every search domain already. Resolvers
        # outside do not know it, and a query would delay clients that wait for a new service.
        return None if "." in name else NAME_ERROR

    def address_records(self) -> Iterable[tuple[str, str]]:
        """List (address, full name) of every address record, for hosts files."""
        for name in self._forward:
            for record in self._answer(self._records_of(name), A).records:
                if record.type == A:
                    yield record.value, name
        for ip, namespace in self._pods.items():
            yield ip, f"{dashed_address(ip)}.{namespace}.pod.{DOMAIN}"

    def _records_of(self, name: str) -> tuple[DnsRecord, ...] | None:
        if records := self._forward.get(name):
            return records
        host, _, rest = name.partition(".")
        namespace, _, tail = rest.partition(".")
        if tail == f"pod.{DOMAIN}" and namespace:
            try:
                return (DnsRecord(A, str(ipaddress.IPv4Address(host.replace("-", ".")))),)
            except ValueError:
                return None
        return None

    def _answer(self, records: tuple[DnsRecord, ...] | None, kind: int) -> DnsAnswer:
        if records is None:
            return NAME_ERROR
        if records[0].type == CNAME and kind != CNAME:
            return self._follow(records[0], kind)
        return DnsAnswer(records=tuple(record for record in records if record.type == kind))

    def _follow(self, alias: DnsRecord, kind: int) -> DnsAnswer:
        chain = [alias]
        while len(chain) <= MAX_ALIASES:
            name = chain[-1].value
            if not name.endswith(f".{DOMAIN}"):
                return DnsAnswer(records=tuple(chain), alias=name)
            records = self._records_of(name) or ()
            own = [replace(r, name=name) for r in records if r.type in (kind, CNAME)]
            chain += own
            if not own or own[0].type != CNAME:
                return DnsAnswer(records=tuple(chain))
        return SERVER_FAILURE

    def _lookup_reverse(self, name: str, kind: int) -> DnsAnswer | None:
        parts = name.removesuffix(REVERSE).split(".")
        try:
            ip = str(ipaddress.IPv4Address(".".join(reversed(parts))))
        except ValueError:
            return NAME_ERROR
        if owners := self._reverse.get(ip):
            records = tuple(DnsRecord(PTR, owner) for owner in sorted(owners.values()))
            return self._answer(records, kind)
        if namespace := self._pods.get(ip):
            full = f"{dashed_address(ip)}.{namespace}.pod.{DOMAIN}"
            return self._answer((DnsRecord(PTR, full),), kind)
        # Resolvers outside have no records of private addresses (RFC 6303).
        return NAME_ERROR if ipaddress.IPv4Address(ip).is_private else None


log = logging.getLogger(__name__)

PORT = 53
FORWARD_TIMEOUT_S = 1.0
TCP_IDLE_S = 10.0
MAX_FORWARDED = 100
MAX_UDP_BYTES = 1 << 16
TCP_LENGTH = struct.Struct(">H")


def host_resolvers() -> list[str]:
    fields = [line.split() for line in read_text(RESOLV_CONF).splitlines()]
    return [part[1] for part in fields if len(part) > 1 and part[0] == "nameserver"]


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
        if answer is None or answer.alias:
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
            transport.sendto(await self._resolve(question, packet, question.udp_size), addr)

        self._own(asyncio.create_task(run()))

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, question: DnsQuestion, packet: bytes, limit: int | None) -> bytes:
        """Answer from the zone, with the help of the host's resolvers if needed."""
        answer = self.answer_from_zone(question)
        if answer is None:
            return await self._forward(question, packet)
        further: list[dnslib.RR] = []
        if answer.alias:
            query = dnslib.DNSRecord(dnslib.DNSHeader(rd=1))
            query.add_question(dnslib.DNSQuestion(answer.alias, question.type))
            reply = await self._forward(question, query.pack())
            with contextlib.suppress(dnslib.DNSError, dnslib.BufferError, ValueError):
                further = dnslib.DNSRecord.parse(reply).rr
        return build_response(question, answer, limit=limit, further=further)

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
        family = socket.AF_INET6 if ":" in resolver else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.connect((resolver, self._resolver_port))
            await loop.sock_sendall(asking, packet)
            return await loop.sock_recv(asking, MAX_UDP_BYTES)

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
                reply = await self._resolve(question, packet, None)
                writer.write(TCP_LENGTH.pack(len(reply)) + reply)
                await writer.drain()
        except (OSError, EOFError, TimeoutError, DnsMessageError):
            pass  # The client disconnected, timed out, or does not speak DNS.
        finally:
            writer.close()
