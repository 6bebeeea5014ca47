"""Pod network with a network namespace for each pod, connected by a bridge. Needs root.

Everything in the kernel has the cluster's prefix (`gl` and six hexadecimal digits of its data
folder): bridge ``PREFIX``, host ends of the pods' links ``PREFIX.N``, namespaces ``PREFIX-N``. N is
the offset of the pod's address in its range. So the leftovers of a killed cluster are found by name
and removed at its next start or by ``gangline down``, and concurrent clusters do not interfere.
``ip`` from iproute2 makes the changes: batches as input, JSON as output.

MAC addresses are derived from IP addresses. A bridge without an explicit MAC has the lowest one of
its ports, which changes whenever a pod starts or ends, and the pods' neighbour tables do not
notice. For up to a minute the pods then could not reach the host, and with it DNS and the API
server. Pods that reuse the IP address of an ended pod would have the same problem. The service
range is a ``local`` route on the bridge, so the host owns all its addresses: a listener on one of
them needs no further setup.

Connections to other hosts are masqueraded on the host's uplink. Three changes are undone at the
end: an nftables table with the cluster's prefix, rules that accept the packets in a filter that
drops forwarded ones, and IP forwarding for the bridge and the uplink only. Write-ahead order: the
previous state is stored first (`STATE_FILE`), so that the changes can be undone after a kill. If a
change fails, pods still reach each other, and the log has a message.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from gangline.api.core.pod import Pod
from gangline.local.network.addresses import (
    RESOLV_CONF,
    AddressPool,
    Network,
    NetworkAttachment,
    NetworkError,
    PodFiles,
    apply_dns_settings,
    choose_range,
    read_text,
    render_cluster_resolv_conf,
    render_hosts,
    split_range,
)


class NetworkNotPermitted(NetworkError):
    """Permissions or kernel features for links and namespaces are missing."""


async def run_command(*command: str, text: str = "") -> str:
    """Run a program with ``text`` on its standard input and return its output. Raises NetworkError:
    it is not installed, or it failed; the message holds its standard error.
    """
    try:
        # In a thread: subprocess uses vfork and copies no page tables, which is ten times faster
        # than the event loop's fork once this process is large.
        # In a new session: a Ctrl-C at the terminal must not interrupt the clean-up.
        process = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text.encode(),
            capture_output=True,
            check=False,
            start_new_session=True,
        )
    except OSError as exc:
        raise NetworkError(f"cannot run {command[0]}: {exc.strerror or exc}") from exc
    if process.returncode != 0:
        message = " ".join(process.stderr.decode(errors="replace").split())
        raise NetworkError(f"{' '.join(command)}: {message or f'exit code {process.returncode}'}")
    return process.stdout.decode()


async def run_batch(lines: Sequence[str], *, netns: str = "", force: bool = False) -> None:
    """Run many ``ip`` commands in one process, in the namespace ``netns`` if given.

    With ``force`` the other commands run even if one fails, and nothing is raised. Raises
    NetworkError: a command failed (without ``force``), or ``ip`` is missing.
    """
    inside = ("-n", netns) if netns else ()
    command = ("ip", *inside, *(("-force",) if force else ()), "-batch", "-")
    try:
        await run_command(*command, text="\n".join(lines) + "\n")
    except NetworkError:
        if not force:
            raise


async def query_json(*arguments: str) -> list[dict[str, Any]]:
    out = await run_command("ip", "-json", *arguments)
    objects: list[dict[str, Any]] = json.loads(out or "[]")
    return objects


log = logging.getLogger(__name__)

STATE_FILE = "outside"
FORWARDING = Path("/proc/sys/net/ipv4/conf")
LINKS = Path("/sys/class/net")
TABLE = """\
table ip {name} {{
    chain leave {{
        type nat hook postrouting priority 100;
        ip saddr {pods} ip daddr != {pods} masquerade
    }}
}}
"""


async def enable_masquerade(data: Path, bridge: str, pods: Network) -> None:
    """Enable connections from pods to other hosts, as far as the host has the tools."""
    try:
        uplink = await _uplink()
        if not uplink:
            return
        filtered = await _is_filtered()
        was = await asyncio.to_thread(_write_state, data, uplink, filtered)
        for rule in _rules(bridge) if filtered else ():
            await run_command("iptables", "-w", "-I", "FORWARD", *rule)
        await run_command("nft", "-f", "-", text=TABLE.format(name=bridge, pods=pods))
        await asyncio.to_thread(_set_forwarding, bridge, "1")
        if was == "0":
            await asyncio.to_thread(_set_forwarding, uplink, "1")
    except (NetworkError, OSError) as error:
        log.info("pods cannot reach other hosts: %s", error)


async def disable_masquerade(data: Path, bridge: str) -> None:
    record = data / "network" / STATE_FILE
    uplink, was, filtered = await asyncio.to_thread(_read_state, record)
    if not uplink:
        return
    await _run_ignoring_errors("nft", "delete", "table", "ip", bridge)
    for rule in _rules(bridge) if filtered else ():
        await _run_ignoring_errors("iptables", "-w", "-D", "FORWARD", *rule)
    if was == "0" and not await asyncio.to_thread(_other_bridges, bridge):
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_set_forwarding, uplink, "0")
    record.unlink(missing_ok=True)


def _rules(bridge: str) -> list[tuple[str, ...]]:
    answers = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    return [("-i", bridge, "-j", "ACCEPT"), ("-o", bridge, *answers, "-j", "ACCEPT")]


async def _uplink() -> str:
    for route in await query_json("-4", "route", "show", "default"):
        return str(route.get("dev", ""))
    return ""


async def _is_filtered() -> bool:
    """True if the host's filter may drop forwarded packets, as with container engines.

    A filter that drops nothing is left alone: adding a rule creates its tables, and removing the
    rule would not remove them.
    """
    try:
        rules = await run_command("iptables", "-w", "-S", "FORWARD")
    except NetworkError:
        return False
    return rules.split() != ["-P", "FORWARD", "ACCEPT"]


async def _run_ignoring_errors(*command: str) -> None:
    try:
        await run_command(*command)
    except NetworkError as error:
        log.debug("nothing to undo: %s", error)


def _write_state(data: Path, uplink: str, filtered: bool) -> str:
    was = (FORWARDING / uplink / "forwarding").read_text().strip()
    path = data / "network" / STATE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{uplink} {was} {'filtered' if filtered else 'open'}\n")
    return was


def _read_state(record: Path) -> tuple[str, str, bool]:
    try:
        uplink, was, filtered = record.read_text().split()
    except (OSError, ValueError):
        return "", "", False
    return uplink, was, filtered == "filtered"


def _set_forwarding(link: str, value: str) -> None:
    (FORWARDING / link / "forwarding").write_text(value)


def _other_bridges(bridge: str) -> list[str]:
    """Bridges of other clusters, which still need forwarding on the uplink."""
    names = (path.name for path in LINKS.glob("gl*") if (path / "bridge").is_dir())
    return [name for name in names if name != bridge]


NETNS_FOLDER = Path("/run/netns")
LOCK_FILE = Path("/run/gangline-network.lock")
RANGE_FILE = "range"


def kernel_prefix(data: Path) -> str:
    return "gl" + hashlib.sha1(str(data.resolve()).encode(), usedforsecurity=False).hexdigest()[:6]


def mac_address(address: str) -> str:
    """Return the locally administered MAC address of the interface with this IPv4 address.

    The plugins of the Container Network Interface use the same prefix for this.
    """
    return f"0a:58:{ipaddress.IPv4Address(address).packed.hex(':')}"


async def remove_kernel_objects(data: Path) -> None:
    """Remove everything that a cluster left in the kernel, and its pods' files."""
    prefix = kernel_prefix(data)
    namespaces = await asyncio.to_thread(_namespaces, f"{prefix}-")
    links = [link["ifname"] for link in await query_json("link", "show")]
    ours = [name for name in links if name == prefix or name.startswith(f"{prefix}.")]
    lines = [f"netns del {name}" for name in namespaces]
    lines += [f"link del {name}" for name in sorted(ours, reverse=True)]
    if lines:
        await run_batch(lines, force=True)
    await disable_masquerade(data, prefix)
    if namespaces and not await asyncio.to_thread(_namespaces, ""):
        # The first ``ip netns add`` on a host mounts this folder; the last cluster unmounts it.
        with contextlib.suppress(NetworkError):
            await run_command("umount", str(NETNS_FOLDER))
    PodFiles(data / "network" / "pods").remove_all()


class BridgeNetwork:
    """The pod network of one cluster; call `open` first, `close` at the end."""

    def __init__(self, data: Path, *, cidr: Network | None = None) -> None:
        self._data = data
        self._requested_cidr = cidr
        self._prefix = kernel_prefix(data)
        self._files = PodFiles(data / "network" / "pods")
        self._attached: dict[str, NetworkAttachment] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.ranges = split_range(Network("0.0.0.0/16"))
        self._pool = AddressPool(self.ranges.pods)

    @property
    def host_address(self) -> str:
        return self.ranges.gateway

    async def open(self) -> None:
        """Remove leftovers, choose a range and create the bridge.

        Raises:
            NetworkNotPermitted: permissions or the ``ip`` program are missing.
            NetworkError: no range is free, or the requested one is not.
        """
        async with _range_lock():
            try:
                await remove_kernel_objects(self._data)
            except NetworkError as error:
                raise NetworkNotPermitted(f"no network namespaces for pods: {error}") from error
            self.ranges = split_range(await self._choose())
            gateway = self.ranges.gateway
            await self._make_bridge(gateway)
        self._pool = AddressPool(self.ranges.pods, reserved=[gateway])
        await enable_masquerade(self._data, self._prefix, self.ranges.pods)

    async def _make_bridge(self, gateway: str) -> None:
        probe, link = f"{self._prefix}-probe", f"{self._prefix}.probe"
        try:
            await run_batch(
                [
                    f"link add {self._prefix} address {mac_address(gateway)} type bridge",
                    f"addr add {gateway}/{self.ranges.pods.prefixlen} dev {self._prefix}",
                    f"link set {self._prefix} up",
                    f"route add local {self.ranges.services} dev {self._prefix}",
                    f"netns add {probe}",
                    f"link add {link} type veth peer name eth0 netns {probe}",
                    f"link set {link} master {self._prefix} up",
                ]
            )
            # Every command that pods need is tried: this one fails where / is no mount point.
            await run_batch(["link set lo up"], netns=probe)
            await run_batch([f"link del {link}", f"netns del {probe}"])
        except NetworkError as error:
            await remove_kernel_objects(self._data)
            raise NetworkNotPermitted(f"no network namespaces for pods: {error}") from error

    async def close(self) -> None:
        self._attached.clear()
        await remove_kernel_objects(self._data)

    async def attach(self, pod: Pod) -> NetworkAttachment:
        """Create a namespace with an address for the pod; see `addresses.PodNetwork`."""
        uid = pod.metadata.uid
        async with self._locks.setdefault(uid, asyncio.Lock()):
            if uid not in self._attached:
                place = self._on_host if pod.spec.host_network else self._in_namespace
                self._attached[uid] = await place(pod)
            return self._attached[uid]

    async def detach(self, pod_uid: str) -> None:
        async with self._locks.setdefault(pod_uid, asyncio.Lock()):
            attachment = self._attached.pop(pod_uid, None)
            if attachment is not None and attachment.netns_path is not None:
                await self._remove(attachment.ip)
                self._pool.release(attachment.ip)
            self._files.remove(pod_uid)
        self._locks.pop(pod_uid, None)

    def namespaces(self) -> dict[str, str | None]:
        """The network namespaces of all pods by address; None is the host's."""
        return {attachment.ip: attachment.netns_path for attachment in self._attached.values()}

    async def _on_host(self, pod: Pod) -> NetworkAttachment:
        resolv = await asyncio.to_thread(read_text, RESOLV_CONF)
        text = await asyncio.to_thread(read_text, Path("/etc/hosts"))
        cluster = resolv
        if pod.spec.dns_policy == "ClusterFirstWithHostNet":
            cluster = render_cluster_resolv_conf(pod.metadata.namespace, self.host_address)
        return self._files.write(
            pod,
            ip=self.host_address,
            netns=None,
            hosts=text,
            resolv=apply_dns_settings(pod, cluster, resolv),
        )

    async def _in_namespace(self, pod: Pod) -> NetworkAttachment:
        address = self._pool.allocate()
        cluster = render_cluster_resolv_conf(pod.metadata.namespace, self.host_address)
        host = await asyncio.to_thread(read_text, RESOLV_CONF)
        try:
            await self._connect(address)
        except NetworkError:
            await self._remove(address)
            self._pool.release(address)
            raise
        return self._files.write(
            pod,
            ip=address,
            netns=str(NETNS_FOLDER / self._netns(address)),
            hosts=render_hosts(pod, address),
            resolv=apply_dns_settings(pod, cluster, host),
        )

    async def _connect(self, address: str) -> None:
        netns, link = self._netns(address), self._link(address)
        peer = f"peer name eth0 address {mac_address(address)} netns {netns}"
        await run_batch(
            [
                f"netns add {netns}",
                f"link add {link} type veth {peer}",
                f"link set {link} master {self._prefix} up",
            ]
        )
        await run_batch(
            [
                "link set lo up",
                f"addr add {address}/{self.ranges.pods.prefixlen} dev eth0",
                "link set eth0 up",
                f"route add default via {self.ranges.gateway}",
            ],
            netns=netns,
        )

    async def _remove(self, address: str) -> None:
        lines = [f"link del {self._link(address)}", f"netns del {self._netns(address)}"]
        await run_batch(lines, force=True)

    def _netns(self, address: str) -> str:
        return f"{self._prefix}-{self._pool.offset(address)}"

    def _link(self, address: str) -> str:
        return f"{self._prefix}.{self._pool.offset(address)}"

    async def _choose(self) -> Network:
        """Prefer the range of the last run if it is free: stored services have addresses of it."""
        remembered = self._data / "network" / RANGE_FILE
        preferred = self._requested_cidr or await asyncio.to_thread(_read_range, remembered)
        taken = await _routes()
        if (
            self._requested_cidr is not None
            and choose_range(taken, self._requested_cidr) != self._requested_cidr
        ):
            raise NetworkError(f"--pod-cidr {self._requested_cidr} overlaps a route of this host")
        chosen = choose_range(taken, preferred, start=int(self._prefix[2:], 16))
        await asyncio.to_thread(_write_range, remembered, chosen)
        return chosen


async def _routes() -> list[Network]:
    """Return the IPv4 ranges that the host has routes for, in any table."""
    networks = []
    for route in await query_json("-4", "route", "show", "table", "all"):
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.IPv4Network(route.get("dst", ""), strict=False))
    return networks


@contextlib.asynccontextmanager
async def _range_lock() -> AsyncIterator[None]:
    """Lock out other clusters while this one chooses its range."""
    descriptor = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _namespaces(prefix: str) -> list[str]:
    if not NETNS_FOLDER.is_dir():
        return []
    return sorted(path.name for path in NETNS_FOLDER.glob(f"{prefix}*"))


def _read_range(path: Path) -> Network | None:
    try:
        return Network(read_text(path).strip())
    except ValueError:
        return None


def _write_range(path: Path, chosen: Network) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{chosen}\n")
