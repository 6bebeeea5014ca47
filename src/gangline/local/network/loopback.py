"""Pod network on the host's own network, with a loopback address for each pod. Works without root.

Every address of 127.0.0.0/8 belongs to the host. Each pod gets one of 127.64.0.0/11 and each
service one of 127.96.0.0/11. Names come from hosts files, which are rewritten when names change.
Concurrent clusters use different /16 ranges of these, each reserved by an abstract socket that
vanishes with its process.

Limit: a pod that listens on all addresses takes the port from all pods.
"""

import hashlib
import socket
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from gangline.api.core.pod import Pod
from gangline.local.network.addresses import (
    RESOLV_CONF,
    AddressPool,
    AddressRanges,
    Network,
    NetworkAttachment,
    NetworkError,
    PodFiles,
    apply_dns_settings,
    read_text,
    render_host_resolv_conf,
    render_hosts,
    short_names,
)
from gangline.local.network.dns import DnsZone

SLOTS = 32
FIRST_POD_RANGE, FIRST_SERVICE_RANGE = 64, 96


class LoopbackNetwork:
    """The pod network of one cluster without root; call `open` first, `close` at the end."""

    host_address = "127.0.0.1"

    def __init__(self, data: Path, zone: DnsZone) -> None:
        self._zone = zone
        self._files = PodFiles(data / "network" / "pods")
        self._start = hashlib.sha1(str(data.resolve()).encode(), usedforsecurity=False).digest()[0]
        self._reservation: socket.socket | None = None
        self._attached: dict[str, tuple[Pod, NetworkAttachment]] = {}
        self.ranges = _slot_ranges(0)
        self._pool = AddressPool(self.ranges.pods)

    async def open(self) -> None:
        """Reserve a range for this cluster and remove the files of the last run. Raises
        NetworkError: more clusters run on this host than there are ranges.
        """
        self._files.remove_all()
        slot, self._reservation = _reserve_slot(self._start)
        self.ranges = _slot_ranges(slot)
        self._pool = AddressPool(self.ranges.pods, reserved=[self.ranges.gateway])

    async def close(self) -> None:
        self._attached.clear()
        self._files.remove_all()
        if self._reservation is not None:
            self._reservation.close()

    async def attach(self, pod: Pod) -> NetworkAttachment:
        """Assign an address to the pod; see `addresses.PodNetwork`."""
        uid = pod.metadata.uid
        if uid not in self._attached:
            address = self.host_address if pod.spec.host_network else self._pool.allocate()
            self._attached[uid] = (pod, self._write(pod, address))
        return self._attached[uid][1]

    async def detach(self, pod_uid: str) -> None:
        attached = self._attached.pop(pod_uid, None)
        if attached is not None:
            self._pool.release(attached[1].ip)
            self._files.remove(pod_uid)

    def namespaces(self) -> dict[str, str | None]:
        """The network namespaces of all pods by address; None is the host's."""
        return {attachment.ip: None for _, attachment in self._attached.values()}

    def rewrite_hosts_files(self) -> None:
        """Rewrite the hosts file of every pod from the zone."""
        texts = {
            namespace: self._others(namespace)
            for namespace in {pod.metadata.namespace for pod, _ in self._attached.values()}
        }
        for pod_uid, (pod, attachment) in self._attached.items():
            text = render_hosts(pod, attachment.ip, texts[pod.metadata.namespace])
            self._files.rewrite_hosts(pod_uid, text)

    def _write(self, pod: Pod, address: str) -> NetworkAttachment:
        host = read_text(RESOLV_CONF)
        return self._files.write(
            pod,
            ip=address,
            netns=None,
            hosts=render_hosts(pod, address, self._others(pod.metadata.namespace)),
            resolv=apply_dns_settings(pod, render_host_resolv_conf(host), host),
        )

    def _others(self, namespace: str) -> Iterable[tuple[str, list[str]]]:
        grouped: dict[str, list[str]] = defaultdict(list)
        for address, full in self._zone.address_records():
            grouped[address] += short_names(full, namespace)
        return sorted(grouped.items())


def _slot_ranges(slot: int) -> AddressRanges:
    return AddressRanges(
        pods=Network(f"127.{FIRST_POD_RANGE + slot}.0.0/16"),
        services=Network(f"127.{FIRST_SERVICE_RANGE + slot}.0.0/16"),
    )


def _reserve_slot(start: int) -> tuple[int, socket.socket]:
    for step in range(SLOTS):
        slot = (start + step) % SLOTS
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            reservation.bind(f"\0gangline-loopback-{slot}")
        except OSError:
            reservation.close()
        else:
            return slot, reservation
    raise NetworkError(
        f"{SLOTS} clusters without root run on this host; stop one with gangline down"
    )
