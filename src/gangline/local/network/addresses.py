"""Address ranges of a cluster: a range that overlaps no route of the host, and a pool of its
addresses.

One /16 is divided in two: the lower half for pods, the upper half for services. The candidates
avoid the default ranges of Kubernetes clusters, container engines and clouds (10.0.0.0/16,
10.42.0.0/15, 10.96.0.0/12, 10.244.0.0/16), since such a cluster may run beside ours.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gangline.local.network.interface import NetworkError

Network = ipaddress.IPv4Network
CANDIDATES = tuple(Network(f"10.{second}.0.0/16") for second in (*range(201, 240), *range(60, 90)))


@dataclass(frozen=True, slots=True)
class AddressRanges:
    pods: Network
    services: Network

    @property
    def gateway(self) -> str:
        """The host's address in the pod range: the pods' gateway and DNS server."""
        return str(self.pods.network_address + 1)


def split_range(network: Network) -> AddressRanges:
    """Divide a range into one for pods (lower half) and one for services (upper half)."""
    pods, services = network.subnets(prefixlen_diff=1)
    return AddressRanges(pods=pods, services=services)


def choose_range(taken: Iterable[Network], preferred: Network | None, start: int = 0) -> Network:
    """Return a range that overlaps none of ``taken``: ``preferred`` if free, else the next
    candidate.

    Raises:
        NetworkError: every candidate overlaps.
    """
    used = [network for network in taken if network.prefixlen > 0]
    turned: tuple[Network, ...] = (
        CANDIDATES[start % len(CANDIDATES) :] + CANDIDATES[: start % len(CANDIDATES)]
    )
    desired: tuple[Network, ...] = (preferred,) if preferred is not None else ()
    for candidate in (*desired, *turned):
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise NetworkError(
        "no free address range for pods: the host has routes over all candidates; "
        "name one yourself with --pod-cidr"
    )


class AddressPool:
    """Assigns the addresses of a range in turn, so that a released one is reused as late as
    possible.
    """

    def __init__(self, network: Network, reserved: Iterable[str] = ()) -> None:
        self._first = int(network.network_address)
        self._size = network.num_addresses
        self._next = 1
        self._used = {int(ipaddress.IPv4Address(address)) - self._first for address in reserved}

    def allocate(self) -> str:
        """Return a free address.

        Raises:
            NetworkError: no address is free.
        """
        for offset in self._from_next():
            if offset not in self._used:
                self._used.add(offset)
                self._next = offset + 1
                return str(ipaddress.IPv4Address(self._first + offset))
        raise NetworkError(
            f"all {self._size - 2} pod addresses are in use; delete pods or widen --pod-cidr"
        )

    def release(self, address: str) -> None:
        """Release an address; unknown ones are ignored."""
        self._used.discard(int(ipaddress.IPv4Address(address)) - self._first)

    def offset(self, address: str) -> int:
        """Return the offset of an address in its range: a short unique number."""
        return int(ipaddress.IPv4Address(address)) - self._first

    def _from_next(self) -> Iterator[int]:
        # The first address is that of the network, the last one is for broadcasts.
        usable = self._size - 2
        for step in range(usable):
            yield (self._next - 1 + step) % usable + 1
