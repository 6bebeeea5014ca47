"""Which addresses a cluster uses: a range that clashes with nothing on the host, and a pool of it.

One /16 is cut in two: pods live in the lower half, services in the upper one. Candidates keep away
from the ranges that Kubernetes clusters, container engines and clouds take by default
(10.0.0.0/16, 10.42.0.0/15, 10.96.0.0/12, 10.244.0.0/16), since such a cluster may run beside ours.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gangline.local.network.contract import NetworkError

Network = ipaddress.IPv4Network
CANDIDATES = tuple(Network(f"10.{second}.0.0/16") for second in (*range(201, 240), *range(60, 90)))


@dataclass(frozen=True, slots=True)
class Ranges:
    """The address ranges of one cluster."""

    pods: Network
    services: Network

    @property
    def gateway(self) -> str:
        """The host's own address among the pods: their way out, and their name server."""
        return str(self.pods.network_address + 1)


def halve(whole: Network) -> Ranges:
    """Cut one range into pods (lower half) and services (upper half)."""
    pods, services = whole.subnets(prefixlen_diff=1)
    return Ranges(pods=pods, services=services)


def choose(taken: Iterable[Network], preferred: Network | None, start: int = 0) -> Network:
    """Pick a range that overlaps none of ``taken``: ``preferred`` if free, else the next candidate.

    Raises:
        NetworkError: every candidate clashes.
    """
    used = [network for network in taken if network.prefixlen > 0]
    turned: tuple[Network, ...] = (
        CANDIDATES[start % len(CANDIDATES) :] + CANDIDATES[: start % len(CANDIDATES)]
    )
    wanted: tuple[Network, ...] = (preferred,) if preferred is not None else ()
    for candidate in (*wanted, *turned):
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise NetworkError(
        "no free address range for pods: the host has routes over all candidates; "
        "name one yourself with --pod-cidr"
    )


class AddressPool:
    """Hands out the addresses of a range in turn, so that a freed one rests before its next use."""

    def __init__(self, network: Network, reserved: Iterable[str] = ()) -> None:
        self._first = int(network.network_address)
        self._size = network.num_addresses
        self._next = 1
        self._used = {int(ipaddress.IPv4Address(address)) - self._first for address in reserved}

    def take(self) -> str:
        """Return an address that nobody holds.

        Raises:
            NetworkError: all are held.
        """
        for offset in self._from_next():
            if offset not in self._used:
                self._used.add(offset)
                self._next = offset + 1
                return str(ipaddress.IPv4Address(self._first + offset))
        raise NetworkError(
            f"all {self._size - 2} pod addresses are in use; delete pods or widen --pod-cidr"
        )

    def give_back(self, address: str) -> None:
        """Free an address; unknown ones are ignored."""
        self._used.discard(int(ipaddress.IPv4Address(address)) - self._first)

    def offset(self, address: str) -> int:
        """Return the place of an address in its range: a short unique number."""
        return int(ipaddress.IPv4Address(address)) - self._first

    def _from_next(self) -> Iterator[int]:
        # The first address names the network and the last one everybody in it.
        usable = self._size - 2
        for step in range(usable):
            yield (self._next - 1 + step) % usable + 1
