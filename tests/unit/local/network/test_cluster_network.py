"""Service forwarding: ready endpoints only, and complete streams in both directions."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import dnslib
import pytest

from gangline.api.core.container import Container, ContainerPort
from gangline.api.core.pod import PodSpec
from gangline.api.core.service import (
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    Service,
    ServicePort,
    ServiceSpec,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.kube.informers.informer import SharedInformerFactory
from gangline.local.network.cluster_network import (
    NetworkUpdater,
    ServiceForwarder,
    ServiceRoute,
    SocketAddress,
    add_slices,
    host_port_routes,
    service_routes,
)
from gangline.local.network.dns import DnsServer, DnsZone
from gangline.local.network.listening import listening_addresses
from unit.kube.virtual_clock import virtual_time
from unit.local.controllers.builders import a_pod


def test_routes_follow_ports_by_name_and_leave_out_what_is_not_ready() -> None:
    service = Service(
        metadata=ObjectMeta(name="s", namespace="ns"),
        spec=ServiceSpec(
            cluster_ip="10.9.0.1",
            ports=[
                ServicePort(name="a", port=80, node_port=30080),
                ServicePort(name="b", port=81, protocol="UDP"),
                ServicePort(name="c", port=82),
            ],
        ),
    )
    subset = EndpointSubset(
        addresses=[EndpointAddress(ip="10.1.0.2"), EndpointAddress(ip="10.1.0.1")],
        not_ready_addresses=[EndpointAddress(ip="10.1.0.3")],
        ports=[EndpointPort(name="a", port=8080), EndpointPort(name="b", port=8081)],
    )
    table = service_routes([(service, Endpoints(subsets=[subset]))])
    route = ServiceRoute((("10.1.0.1", 8080), ("10.1.0.2", 8080)))
    assert table == {("10.9.0.1", 80): route, ("127.0.0.1", 30080): route}
    assert service_routes([(service, None)]) == {}


@pytest.mark.parametrize(
    ("ip", "declared", "address"),
    [
        pytest.param("10.1.0.2", {"host_port": 80}, ("127.0.0.1", 80), id="of the node"),
        pytest.param(
            "10.1.0.2", {"host_port": 80, "host_ip": "127.0.0.2"}, ("127.0.0.2", 80), id="address"
        ),
        pytest.param("10.1.0.2", {"host_port": 80, "protocol": "UDP"}, None, id="UDP"),
        pytest.param("10.1.0.2", {}, None, id="none"),
        pytest.param("127.64.0.2", {"host_port": 8080}, None, id="same port of the same machine"),
    ],
)
def test_host_ports_lead_to_the_pod(
    ip: str, declared: dict[str, Any], address: SocketAddress | None
) -> None:
    ports = [ContainerPort(container_port=8080, **declared)]
    pod = a_pod(ip=ip, spec=PodSpec(containers=[Container(name="c", ports=ports)]))
    assert host_port_routes(pod) == ({address: ServiceRoute(((ip, 8080),))} if address else {})


async def _server(greeting: bytes) -> tuple[asyncio.Server, SocketAddress]:
    """A server that greets, and sends back all it got once the client has said everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.write(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[:2]


async def _free_port() -> SocketAddress:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address: SocketAddress = server.sockets[0].getsockname()[:2]
    server.close()
    await server.wait_closed()
    return address


async def _ask(address: SocketAddress, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(content)
    writer.write_eof()
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


async def test_connections_take_turns_and_half_closed_ones_still_get_their_answer() -> None:
    (first, a), (second, b) = await _server(b"a"), await _server(b"b")
    listen, forwarder = await _free_port(), ServiceForwarder()
    assert await forwarder.apply({listen: ServiceRoute((a, b))})
    payload = b"x" * 1_000_000
    answers = [await _ask(listen, payload) for _ in range(2)]
    assert sorted(answer[:1] for answer in answers) == [b"a", b"b"]
    assert all(answer[1:] == payload for answer in answers)
    await forwarder.stop()
    first.close()
    second.close()


async def test_dead_endpoint_is_skipped() -> None:
    server, alive = await _server(b"alive")
    dead, listen, forwarder = await _free_port(), await _free_port(), ServiceForwarder()
    await forwarder.apply({listen: ServiceRoute((dead, alive))})
    assert [await _ask(listen, b"") for _ in range(2)] == [b"alive", b"alive"]
    await forwarder.stop()
    server.close()


async def test_a_service_refuses_connections_until_something_listens_behind_it() -> None:
    async def find(targets: set[SocketAddress]) -> set[SocketAddress]:
        return listening_addresses(dict.fromkeys(targets))

    target, listen = await _free_port(), await _free_port()
    forwarder, lost = ServiceForwarder(find), asyncio.Event()
    forwarder.on_lost_targets = lost.set
    routes = {listen: ServiceRoute((target,))}
    await forwarder.apply(routes)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listen)
    assert forwarder.awaited_hosts == {target[0]}
    server = await asyncio.start_server(lambda _, writer: writer.close(), *target)
    await forwarder.apply(routes)
    assert not forwarder.awaited_hosts
    assert await _ask(listen, b"") == b""
    server.close()
    await server.wait_closed()
    with contextlib.suppress(ConnectionError):  # The first one finds out that none listens.
        await _ask(listen, b"")
    await lost.wait()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listen)
    await forwarder.stop()


class StubInformers:
    """Informers without objects, whose changes a test reports."""

    def __init__(self) -> None:
        self.listeners: dict[str, Callable[[Any, Any], None]] = {}

    def informer(self, kind: Resource[Any], **_: object) -> SimpleNamespace:
        return SimpleNamespace(add_listener=partial(self.listeners.__setitem__, kind.kind))


@virtual_time
async def test_targets_that_do_not_listen_are_probed_ever_more_rarely_until_their_pod_changes() -> (
    None
):
    probes: list[float] = []

    async def find(_: set[SocketAddress]) -> set[SocketAddress]:
        probes.append(asyncio.get_running_loop().time())
        return set()

    stub, routes = StubInformers(), {("127.0.0.1", 1): ServiceRoute((("10.1.0.2", 80),))}
    informers = cast(SharedInformerFactory, stub)
    updater = NetworkUpdater(informers, DnsZone(), ServiceForwarder(find), fixed=routes)
    running = asyncio.create_task(updater.run())

    async def pauses(seconds: float) -> list[float]:
        del probes[:-1]
        await asyncio.sleep(seconds)
        return [round(after - before, 1) for before, after in pairwise(probes)]

    assert await pauses(4) == [0.1, 0.2, 0.4, 0.8, 1, 1]
    stub.listeners["Pod"](a_pod(ip="10.1.0.2"), a_pod(ip="10.1.0.2", ready=False))
    assert (await pauses(2))[1:] == [0.1, 0.2, 0.4, 0.8]
    running.cancel()


async def test_a_client_stays_with_its_endpoint_if_the_service_says_so() -> None:
    (first, a), (second, b) = await _server(b"a"), await _server(b"b")
    listen, forwarder = await _free_port(), ServiceForwarder()
    await forwarder.apply({listen: ServiceRoute((a, b), affinity_s=60)})
    answers = [await _ask(listen, b"") for _ in range(4)]
    assert len(set(answers)) == 1
    await forwarder.stop()
    first.close()
    second.close()


def test_endpoint_slices_of_others_are_endpoints_of_their_service() -> None:
    service = Service(
        metadata=ObjectMeta(name="s", namespace="ns"),
        spec=ServiceSpec(
            cluster_ip="10.9.0.1",
            ports=[ServicePort(name="a", port=80)],
            session_affinity="ClientIP",
            session_affinity_config={"clientIP": {"timeoutSeconds": 5}},
        ),
    )
    endpoints = [
        Endpoint(["10.1.0.1"], EndpointConditions(ready=True)),
        Endpoint(["10.1.0.2"], EndpointConditions(ready=False)),
        Endpoint(["10.1.0.3"]),
    ]
    slice_ = EndpointSlice(
        address_type="IPv4", endpoints=endpoints, ports=[EndpointPort(name="a", port=8080)]
    )
    targets = (("10.1.0.1", 8080), ("10.1.0.3", 8080))
    table = service_routes([(service, add_slices(None, [slice_]))])
    assert table == {("10.9.0.1", 80): ServiceRoute(targets, 5)}


async def test_a_taken_address_is_reported_and_opened_later() -> None:
    server, taken = await _server(b"")
    forwarder = ServiceForwarder()
    assert not await forwarder.apply({taken: ServiceRoute((("127.0.0.1", 1),))})
    server.close()
    await server.wait_closed()
    assert await forwarder.apply({taken: ServiceRoute((("127.0.0.1", 1),))})
    await forwarder.stop()


def _query(name: str) -> bytes:
    message = dnslib.DNSRecord(dnslib.DNSHeader(id=1, rd=1), q=dnslib.DNSQuestion(name))
    return bytes(message.pack())


async def _ask_tcp(port: int, name: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    packet = _query(name)
    writer.write(len(packet).to_bytes(2, "big") + packet)
    length = int.from_bytes(await reader.readexactly(2), "big")
    reply = await reader.readexactly(length)
    writer.close()
    return reply


async def test_names_are_answered_over_tcp_and_foreign_ones_fail_without_resolvers() -> None:
    zone = DnsZone()
    server = DnsServer(zone, "127.0.0.1", port=0)
    await server.start()
    answer = await _ask_tcp(server.port, "1-2-3-4.ns.pod.cluster.local")
    assert answer.endswith(bytes([1, 2, 3, 4]))
    foreign = await _ask_tcp(server.port, "example.com")
    assert dnslib.DNSRecord.parse(foreign).header.rcode == 2
    await server.stop()


async def test_foreign_names_are_passed_to_a_resolver_and_its_answer_passed_back() -> None:
    upstream_zone = DnsZone()
    upstream = DnsServer(upstream_zone, "127.0.0.2", port=0)
    await upstream.start()
    server = DnsServer(
        DnsZone(), "127.0.0.1", port=0, resolvers=["127.0.0.2"], resolver_port=upstream.port
    )
    await server.start()
    # The upstream has no resolver and returns SERVFAIL, which proves that it was queried.
    reply = await _ask_tcp(server.port, "example.com")
    assert dnslib.DNSRecord.parse(reply).header.id == 1
    assert dnslib.DNSRecord.parse(reply).header.rcode == 2
    await server.stop()
    await upstream.stop()
