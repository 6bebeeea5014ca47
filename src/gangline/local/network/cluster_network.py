"""The network of one cluster: pod network, DNS server and service addresses, opened and closed
together.
"""

import ipaddress
import logging
import os
from pathlib import Path

from gangline.kube.informers.shared_informers import SharedInformerFactory
from gangline.local.network import bridge, iproute2
from gangline.local.network.bridge import BridgeNetwork
from gangline.local.network.dns_server import DnsServer, host_resolvers
from gangline.local.network.dns_zone import DnsZone
from gangline.local.network.interface import NetworkError, PodNetwork
from gangline.local.network.loopback import LoopbackNetwork
from gangline.local.network.service_forwarder import ServiceForwarder
from gangline.local.network.updater import NetworkUpdater

log = logging.getLogger(__name__)

API_SERVICE_PORT = 443


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
        self._forwarder = ServiceForwarder()
        self._dns: DnsServer | None = None
        self._pods: BridgeNetwork | LoopbackNetwork | None = None
        self.limitation = ""
        """The reason why pods share the host's network although ``auto`` was set; empty if they do
        not.
        """

    @property
    def pods(self) -> PodNetwork:
        """The pod network that kubelets use."""
        return self._opened()

    @property
    def service_cidr(self) -> str:
        """The address range of services."""
        return str(self._opened().ranges.services)

    @property
    def pod_cidr(self) -> str:
        """The address range of pods."""
        return str(self._opened().ranges.pods)

    @property
    def host_address(self) -> str:
        """The address at which pods reach the host."""
        return self._opened().host_address

    @property
    def isolated(self) -> bool:
        """True if each pod has a network namespace of its own."""
        return isinstance(self._pods, BridgeNetwork)

    async def open(self) -> None:
        """Choose the mode and the ranges, and set up what all pods share.

        Raises:
            NetworkError: the requested mode or range is not available.
        """
        if self._mode == "bridge" or (self._mode == "auto" and os.geteuid() == 0):
            try:
                await self._open_bridge()
            except iproute2.NetworkNotPermitted as error:
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
            fixed={(address, API_SERVICE_PORT): (api_server,)},
            names_changed=pods.rewrite_hosts_files if isinstance(pods, LoopbackNetwork) else None,
        )

    async def close(self) -> None:
        """Close all sockets and remove everything from the kernel."""
        await self._forwarder.stop()
        if self._dns is not None:
            await self._dns.stop()
        if self._pods is not None:
            await self._pods.close()

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
