"""The network of one cluster: pods, DNS and service addresses, opened and closed together.

Listeners on services, endpoints and pods update the DNS zone immediately. Sockets and hosts files
follow a few milliseconds later, so that many changes are applied together.

Service addresses are TCP listeners that forward connections to the endpoints of a service. The
routing table is data (`service_routes`); the forwarder opens and closes listeners to match it. A
service without a ready endpoint that listens has no listener, so that clients are refused
immediately, as on Kubernetes. UDP ports are not forwarded. Node ports of services and host ports of
pods are forwarded from the address of the nodes, which all nodes share.

The endpoints of a service are those of its Endpoints object, and those of EndpointSlices that
others than this cluster's controllers write.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gangline.api.core.core import Endpoints, EndpointSlice, Service
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.core.service import EndpointAddress, EndpointSubset
from gangline.api.meta.objects import Object
from gangline.api.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES
from gangline.kube.informers.informer import ObjectKey, SharedInformerFactory, object_key
from gangline.local.network import bridge
from gangline.local.network.addresses import (
    NODE_ADDRESS,
    NetworkError,
    PodNetwork,
    api_service_port,
)
from gangline.local.network.bridge import BridgeNetwork
from gangline.local.network.dns import HEADLESS, DnsServer, DnsZone, host_resolvers, service_records
from gangline.local.network.listening import SocketAddress, listening_addresses
from gangline.local.network.loopback import LoopbackNetwork

log = logging.getLogger(__name__)

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER, MIRROR = (
    f"{name}-controller.k8s.io" for name in ("endpointslice", "endpointslicemirroring")
)
"""Controllers of this cluster: slices of the first have the pods that a service selects, those of
the second what others wrote into Endpoints.
"""


class ServiceRoute(NamedTuple):
    targets: tuple[SocketAddress, ...]
    affinity_s: float = 0.0
    """Seconds for which a client stays with its target after its last connection; 0 for none."""


ServiceRoutes: TypeAlias = Mapping[SocketAddress, ServiceRoute]
FindListening: TypeAlias = Callable[[set[SocketAddress]], Awaitable[set[SocketAddress]]]
PROBED_TARGETS = 16
"""Targets of a route that one check looks at: usually all listen or none; each has its tables."""
CHUNK = 1 << 16
CONNECT_TIMEOUT_S = 3.0
AFFINITY_S = 10800.0


def add_slices(endpoints: Endpoints | None, slices: Iterable[EndpointSlice]) -> Endpoints | None:
    """Return the endpoints of a service with those of further slices."""
    subsets = [] if endpoints is None else list(endpoints.subsets)
    for slice_ in slices:
        ready: dict[bool, list[EndpointAddress]] = {True: [], False: []}
        for endpoint in slice_.endpoints if slice_.address_type == "IPv4" else ():
            # An unknown readiness counts as ready, as the API says.
            serves = endpoint.conditions is None or endpoint.conditions.ready is not False
            ready[serves] += [
                EndpointAddress(ip=ip, hostname=endpoint.hostname) for ip in endpoint.addresses[:1]
            ]
        subsets.append(EndpointSubset(ready[True], ready[False], slice_.ports))
    return Endpoints(subsets=subsets) if subsets else endpoints


def service_routes(services: Iterable[tuple[Service, Endpoints | None]]) -> ServiceRoutes:
    """Map each (cluster address, port), and each node port, to its ready endpoints."""
    table: dict[SocketAddress, ServiceRoute] = {}
    for service, endpoints in services:
        address = service.spec.cluster_ip
        if endpoints is None or address in ("", HEADLESS):
            continue
        for port in service.spec.ports:
            if (port.protocol or "TCP") != "TCP":
                continue
            targets = tuple(sorted(_targets(endpoints, port.name)))
            if targets:
                route = table[address, port.port] = ServiceRoute(targets, _affinity_s(service))
                if port.node_port:
                    table[NODE_ADDRESS, port.node_port] = route
    return table


def host_port_routes(pod: Pod) -> ServiceRoutes:
    """Map the host ports of a pod to its own ports."""
    ip = pod.status.pod_ip
    ports = [port for container in pod.spec.containers for port in container.ports]
    return {
        (NODE_ADDRESS if port.host_ip in ("", "0.0.0.0") else port.host_ip, port.host_port): (
            ServiceRoute(((ip, port.container_port),))
        )
        for port in ports
        if port.host_port
        and (port.protocol or "TCP") == "TCP"
        # On the host's network, a program that listens on all addresses needs no forwarder.
        and not (ip.startswith("127.") and port.host_port == port.container_port)
    }


def _affinity_s(service: Service) -> float:
    if service.spec.session_affinity != "ClientIP":
        return 0.0
    config = service.spec.session_affinity_config or {}
    return (config.get("clientIP") or {}).get("timeoutSeconds") or AFFINITY_S


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

    def __init__(self, route: ServiceRoute) -> None:
        self.route = route
        self.server: asyncio.Server | None = None
        self._counter = count()
        self._last: dict[str, tuple[SocketAddress, float]] = {}
        """The target and time of each client's last connection, if clients stay with theirs."""

    def targets_for(self, client: str) -> tuple[SocketAddress, ...]:
        """The targets in round-robin order; that of the client comes first if it stays with it."""
        targets, affinity_s = self.route
        first = next(self._counter) % len(targets)
        in_turn = targets[first:] + targets[:first]
        now = time.monotonic()
        if affinity_s:
            self._last = {ip: use for ip, use in self._last.items() if now - use[1] < affinity_s}
            target, _ = self._last.get(client, (in_turn[0], now))
            in_turn = (*([target] if target in targets else []), *in_turn)
        return in_turn

    def record_use(self, client: str, target: SocketAddress) -> None:
        if self.route.affinity_s:
            self._last[client] = (target, time.monotonic())


class ServiceForwarder:
    """Owns one listener for each route and copies bytes in both directions."""

    def __init__(self, find_listening: FindListening | None = None) -> None:
        """Without ``find_listening`` all targets count as listening."""
        self._listeners: dict[SocketAddress, _Listener] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._find_listening = find_listening
        self._taken: set[SocketAddress] = set()
        """Addresses that others listen at: reported once, tried again."""
        self.awaited_hosts: frozenset[str] = frozenset()
        """The targets' hosts of routes that have no listener because none of them listens."""
        self.on_lost_targets: Callable[[], None] = lambda: None
        """Called when a listener was closed because no target accepts connections any more."""

    async def apply(self, table: ServiceRoutes) -> bool:
        """Open, change and close listeners so that they match ``table``.

        Returns False if a port is taken; the next call tries it again. A port without permission
        (low ports, without root) is not tried again.
        """
        for gone in self._listeners.keys() - table.keys():
            self._close(self._listeners.pop(gone))
        closed = {
            address: route for address, route in table.items() if address not in self._listeners
        }
        listening = {
            target
            for route in closed.values()
            for target in random.sample(route.targets, min(PROBED_TARGETS, len(route.targets)))
        }
        if self._find_listening is not None and closed:
            listening = await self._find_listening(listening)
        ready = {address for address, to in closed.items() if not listening.isdisjoint(to.targets)}
        waiting = (route for address, route in closed.items() if address not in ready)
        self.awaited_hosts = frozenset(host for route in waiting for host, _ in route.targets)
        for address, route in table.items():
            if listener := self._listeners.get(address):
                listener.route = route
            elif address in ready:
                await self._open(address, _Listener(route))
        return self._listeners.keys() >= ready

    async def stop(self) -> None:
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
            connected = await _proxy_connection(listener, reader, writer)
            if not connected and self._listeners.get(address) is listener:
                self._close(self._listeners.pop(address))
                self.on_lost_targets()

        try:
            listener.server = await asyncio.start_server(serve, *address)
        except PermissionError:
            log.info("service port needs root: not served", extra={"address": address})
        except OSError as exc:
            if address not in self._taken:
                log.warning("address not opened", extra={"address": address, "error": str(exc)})
            self._taken.add(address)
            return
        self._taken.discard(address)
        self._listeners[address] = listener

    def _close(self, listener: _Listener) -> None:
        if listener.server is not None:
            listener.server.close()


async def _proxy_connection(
    listener: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Connect to the first target that accepts, and copy until both sides have closed their
    streams. Returns False if no target accepts.
    """
    try:
        far = await _connect(listener, writer.get_extra_info("peername")[0])
        if far is None:
            writer.transport.abort()
            return False
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
    return True


async def _connect(
    listener: _Listener, client: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for target in listener.targets_for(client):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                streams = await asyncio.open_connection(*target)
            listener.record_use(client, target)
            return streams
    return None


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy one direction; an end of stream is forwarded and leaves the other direction open."""
    while chunk := await source.read(CHUNK):
        sink.write(chunk)
        await sink.drain()
    if not sink.is_closing() and sink.can_write_eof():
        sink.write_eof()


BATCH_S = 0.01
RETRY_S = 5.0
PROBE_S = (0.1, 1.0)
"""The first and the longest delay between checks whether a target listens that did not at the last
one. It doubles until the target's pod, a service or endpoints change.
"""


class NetworkUpdater:
    """Updates a zone and a forwarder from informers.

    ``fixed`` routes always exist (the API server's own). ``names_changed`` is called when hosts
    files have to be rewritten.
    """

    def __init__(
        self,
        informers: SharedInformerFactory,
        zone: DnsZone,
        forwarder: ServiceForwarder,
        *,
        fixed: ServiceRoutes,
        names_changed: Callable[[], None] | None = None,
    ) -> None:
        self._zone = zone
        self._forwarder = forwarder
        self._routes: dict[ObjectKey | str, ServiceRoutes] = {"": fixed}
        """The routes of services by key, and of pods by uid."""
        self._names_changed = names_changed
        self._work = asyncio.Event()
        self._work.set()
        self._renamed = True
        forwarder.on_lost_targets = self._work.set
        self._services = informers.informer(SERVICES)
        self._endpoints = informers.informer(ENDPOINTS)
        self._slices = informers.informer(
            ENDPOINT_SLICES,
            labels=f"{SERVICE_NAME_LABEL},{MANAGED_BY_LABEL} notin ({MANAGER},{MIRROR})",
            indexes={"service": lambda slice_: [_service_name(slice_)]},
        )
        self._slices.add_listener(self._slice_changed)
        pods = informers.informer(PODS)
        self._services.add_listener(self._service_changed)
        self._endpoints.add_listener(self._service_changed)
        pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        first, longest = PROBE_S
        delay_s = first
        while True:
            try:
                async with asyncio.timeout(delay_s if self._forwarder.awaited_hosts else None):
                    await self._work.wait()
                await asyncio.sleep(BATCH_S)
                delay_s = first
            except TimeoutError:
                delay_s = min(longest, delay_s * 2)
            self._work.clear()
            if self._renamed and self._names_changed is not None:
                self._renamed = False
                self._names_changed()
            merged = {address: to for part in self._routes.values() for address, to in part.items()}
            if not await self._forwarder.apply(merged):
                # An address was taken, perhaps by a listener that is being closed.
                asyncio.get_running_loop().call_later(RETRY_S, self._work.set)

    def _service_changed(self, old: Object | None, new: Object | None) -> None:
        changed = new or old
        assert changed is not None
        self._update_service(object_key(changed))

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for slice_ in (old, new):
            if slice_ is not None:
                self._update_service(ObjectKey(*_service_name(slice_).split("/")))

    def _update_service(self, key: ObjectKey) -> None:
        service = self._services.get(key.namespace, key.name)
        slices = self._slices.by_index("service", f"{key.namespace}/{key.name}")
        endpoints = add_slices(self._endpoints.get(key.namespace, key.name), slices)
        records = service_records(service, endpoints) if service is not None else None
        table = service_routes([(service, endpoints)]) if service is not None else {}
        renamed = self._zone.set_service(key, records)
        self._renamed |= renamed
        if renamed:
            self._work.set()
        self._set_routes(key, table)

    def _set_routes(self, key: ObjectKey | str, table: ServiceRoutes) -> None:
        if self._routes.get(key, {}) != table:
            self._work.set()
        self._routes[key] = table
        if not table:
            del self._routes[key]

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.status.pod_ip in self._forwarder.awaited_hosts:
            self._work.set()
        before, after = _address(old), _address(new)
        if before == after:
            return
        if before is not None:
            self._zone.set_pod(before[0], None)
        if after is not None:
            self._zone.set_pod(*after)
        if (pod := new or old) is not None:
            self._set_routes(pod.metadata.uid, host_port_routes(pod) if after else {})
        self._renamed = True
        self._work.set()


def _service_name(slice_: EndpointSlice) -> str:
    return f"{slice_.metadata.namespace}/{slice_.metadata.labels[SERVICE_NAME_LABEL]}"


def _address(pod: Pod | None) -> tuple[str, str] | None:
    if (
        pod is None
        or not pod.status.pod_ip
        or pod.spec.host_network
        or pod.status.phase in TERMINAL_PHASES
    ):
        return None
    return pod.status.pod_ip, pod.metadata.namespace


class ClusterNetwork:
    """The network of one cluster.

    ``mode`` is ``bridge`` (a namespace for each pod; root), ``host`` (loopback addresses on the
    host's network) or ``auto`` (``bridge`` if it works, else ``host``).
    """

    def __init__(self, data: Path, *, mode: str = "auto", pod_cidr: str | None = None) -> None:
        self._data = data
        self._mode = mode
        self._cidr = pod_cidr
        self._zone = DnsZone()
        self._forwarder = ServiceForwarder(self._find_listening)
        self._dns: DnsServer | None = None
        self._pods: BridgeNetwork | LoopbackNetwork | None = None
        self.limitation = ""
        """The reason why pods share the host's network although ``auto`` was set; empty if they do
        not.
        """

    @property
    def pods(self) -> PodNetwork:
        return self._opened()

    @property
    def service_cidr(self) -> str:
        return str(self._opened().ranges.services)

    @property
    def isolated(self) -> bool:
        return isinstance(self._pods, BridgeNetwork)

    async def open(self) -> None:
        """Choose the mode and the ranges, and set up what all pods share. Raises NetworkError: the
        requested mode or range is not available.
        """
        if self._mode == "bridge" or (self._mode == "auto" and os.geteuid() == 0):
            try:
                await self._open_bridge()
            except bridge.NetworkNotPermitted as error:
                if self._mode == "bridge":
                    raise
                self.limitation = str(error)
                log.warning("pods share the host's network: %s", error)
            else:
                return
        loopback = LoopbackNetwork(self._data, self._zone)
        await loopback.open()
        self._pods = loopback

    async def _open_bridge(self) -> None:
        cidr = _parse_cidr(self._cidr) if self._cidr else None
        pods = BridgeNetwork(self._data, cidr=cidr)
        await pods.open()
        self._pods = pods
        self._dns = DnsServer(self._zone, pods.host_address, resolvers=host_resolvers())
        try:
            await self._dns.start()
        except OSError as error:
            await pods.close()
            raise NetworkError(
                f"cannot serve names on {pods.host_address}:53: {error.strerror or error}"
            ) from error

    def updater(
        self, informers: SharedInformerFactory, api_server: tuple[str, int]
    ) -> NetworkUpdater:
        """Return the updater of names and service addresses; ``api_server`` backs service
        ``kubernetes``.
        """
        pods = self._opened()
        address = str(pods.ranges.services.network_address + 1)
        return NetworkUpdater(
            informers,
            self._zone,
            self._forwarder,
            fixed={(address, api_service_port()): ServiceRoute((api_server,))},
            names_changed=pods.rewrite_hosts_files if isinstance(pods, LoopbackNetwork) else None,
        )

    async def close(self) -> None:
        await self._forwarder.stop()
        if self._dns is not None:
            await self._dns.stop()
        if self._pods is not None:
            await self._pods.close()

    async def _find_listening(self, targets: set[SocketAddress]) -> set[SocketAddress]:
        """Return the targets that listen; those outside the cluster are taken to do so."""
        places = self._opened().namespaces()
        inside = {target: places[target[0]] for target in targets if target[0] in places}
        return (targets - inside.keys()) | await asyncio.to_thread(listening_addresses, inside)

    def _opened(self) -> BridgeNetwork | LoopbackNetwork:
        if self._pods is None:
            raise RuntimeError("the network is not open")
        return self._pods


async def remove_network_leftovers(data: Path) -> None:
    """Remove what a killed cluster left in the kernel. Without root there is nothing to remove."""
    if os.geteuid() == 0:
        try:
            await bridge.remove_kernel_objects(data)
        except NetworkError as error:
            log.debug("network leftovers not removed", extra={"error": str(error)})


def _parse_cidr(cidr: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise NetworkError(f"--pod-cidr {cidr}: {error}; give one such as 10.210.0.0/16") from error
    if network.prefixlen > 28:
        raise NetworkError(f"--pod-cidr {cidr} is too small: give a /28 or larger")
    return network
