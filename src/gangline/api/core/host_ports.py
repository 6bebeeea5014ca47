"""Host ports of pods: which ones a pod takes on its node, by Kubernetes' rules.

A port without an address, or with ``0.0.0.0``, is taken on all addresses of the node. Ports of init
containers count only if the container is a sidecar.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class HostPort(NamedTuple):
    port: int
    protocol: str
    address: str
    """Empty: all addresses of the node."""

    def conflicts_with(self, other: "HostPort") -> bool:
        """Return whether a node cannot have both."""
        same = (self.port, self.protocol) == (other.port, other.protocol)
        return same and (not (self.address and other.address) or self.address == other.address)


class HasHostPort(Protocol):
    """The part of a container's port that is read here."""

    @property
    def host_port(self) -> int: ...
    @property
    def host_ip(self) -> str: ...
    @property
    def protocol(self) -> str: ...


class HasPorts(Protocol):
    """The part of a container that is read here."""

    @property
    def ports(self) -> Sequence[HasHostPort]: ...
    @property
    def restart_policy(self) -> str: ...


class HasContainersWithPorts(Protocol):
    """The part of a pod specification that is read here."""

    @property
    def containers(self) -> Sequence[HasPorts]: ...
    @property
    def init_containers(self) -> Sequence[HasPorts]: ...


def host_ports(spec: HasContainersWithPorts) -> Iterator[HostPort]:
    """Yield the host ports of a pod."""
    sidecars = (one for one in spec.init_containers if one.restart_policy == "Always")
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            if port.host_port:
                address = "" if port.host_ip == "0.0.0.0" else port.host_ip
                yield HostPort(port.host_port, port.protocol or "TCP", address)
