"""What kubelets and both pod networks share: names, addresses and files of pods.

One /16 that overlaps no route of the host is divided in two: the lower half for pods, the upper
half for services. The candidates avoid the default ranges of Kubernetes clusters, container engines
and clouds (10.0.0.0/16, 10.42.0.0/15, 10.96.0.0/12, 10.244.0.0/16), since such a cluster may run
beside ours. Each pod has a folder with its ``hosts`` and ``resolv.conf``.

The files of an attachment belong to the network, which rewrites them in place when names change. A
kubelet therefore bind-mounts them and never copies them. They are removed by `detach`.
"""

import ipaddress
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gangline.api.core.pod import Pod

NODE_ADDRESS = "127.0.0.1"
"""The address of all virtual nodes: their kubelets' server and ports of the node are there."""
DOMAIN = "cluster.local"


def host_name(pod: Pod) -> str:
    """Return a pod's host name: that of its spec, else its name, at most 63 characters long."""
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def dns_names(pod: Pod) -> tuple[str, ...]:
    """Return a pod's names; the full name comes first if a service gives it one."""
    host, subdomain = host_name(pod), pod.spec.subdomain
    if not subdomain:
        return (host,)
    return (f"{host}.{subdomain}.{pod.metadata.namespace}.svc.{DOMAIN}", host)


def system_name(pod: Pod) -> str:
    return dns_names(pod)[0] if pod.spec.set_hostname_as_fqdn else host_name(pod)


@dataclass(frozen=True, slots=True)
class NetworkAttachment:
    """The network of one pod."""

    ip: str
    """The pod's address, unique in the cluster (``hostNetwork`` pods share their node's)."""

    netns_path: str | None
    """The network namespace to enter; None if the pod shares the host's network."""

    hostname: str
    """The host name that the pod sees."""

    hosts_path: Path
    """The file to bind-mount as ``/etc/hosts``; later names are added to it."""

    resolv_path: Path
    """The file to bind-mount as ``/etc/resolv.conf``."""


class NetworkError(Exception):
    """The network cannot do what was requested; the message gives the remedy."""


class PodNetwork(Protocol):
    """Attaches pods to the network. ``attach`` may be repeated for a pod and returns the same
    result.
    """

    async def attach(self, pod: Pod) -> NetworkAttachment:
        """Assign an address and, on a bridge network, a namespace to the pod. Raises NetworkError:
        no address is left, or the system refuses.
        """
        ...

    async def detach(self, pod_uid: str) -> None:
        """Release the pod's address and namespace; does nothing for a pod that is not attached."""
        ...


HOSTS_HEADER = "# Kubernetes-managed hosts file.\n"
"""What Kubernetes writes there: programs recognise a file that is rewritten."""
RESOLV_CONF = Path("/etc/resolv.conf")
LOCALHOST_LINES = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def api_service_port() -> int:
    """Return the port of the service ``kubernetes``: 443, or 6443 if only root may listen below
    1024. Pods find it in ``KUBERNETES_SERVICE_PORT``.
    """
    return 443 if os.geteuid() == 0 else 6443


def render_hosts(pod: Pod, ip: str, others: Iterable[tuple[str, Sequence[str]]] = ()) -> str:
    """Return a hosts file with the pod itself, its aliases, and ``others`` as (address, names)."""
    lines = [HOSTS_HEADER, LOCALHOST_LINES, f"{ip}\t{' '.join(dns_names(pod))}\n"]
    lines += [f"{alias.ip}\t{' '.join(alias.hostnames)}\n" for alias in pod.spec.host_aliases]
    lines += [f"{address}\t{' '.join(names)}\n" for address, names in others]
    return "".join(lines)


def render_cluster_resolv_conf(namespace: str, server: str) -> str:
    search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
    return f"search {search}\nnameserver {server}\noptions ndots:5\n"


def render_host_resolv_conf(host: str) -> str:
    """Return a resolv.conf for a pod that shares the host's network, from the host's own.

    Names of the cluster come from the hosts file there. A name that does not exist yet must fail
    quickly; the usual timeout for a resolver that does not answer is ten seconds.
    """
    kept = [line for line in host.splitlines() if line.split()[:1] not in (["options"], ["search"])]
    return "\n".join([*kept, "options timeout:1 attempts:1"]) + "\n"


def apply_dns_settings(pod: Pod, cluster: str, host: str) -> str:
    """Return the resolv.conf of a pod by its ``dnsPolicy`` and ``dnsConfig``.

    ``cluster`` and ``host`` are the texts with the resolvers of the cluster and of the host.
    """
    base = {"None": "", "Default": host}.get(pod.spec.dns_policy, cluster)
    config = pod.spec.dns_config
    if config is None:
        return base
    lines = [line.split() for line in base.splitlines()]
    servers = [line[1] for line in lines if line[:1] == ["nameserver"] and len(line) > 1]
    searches = [domain for line in lines if line[:1] == ["search"] for domain in line[1:]]
    options = [option for line in lines if line[:1] == ["options"] for option in line[1:]]
    added = {option.name: option.value for option in config.options}
    options = [option for option in options if option.partition(":")[0] not in added]
    options += [f"{name}:{value}" if value else name for name, value in added.items()]
    searches = list(dict.fromkeys([*searches, *config.searches]))
    servers = list(dict.fromkeys([*servers, *config.nameservers]))
    text = "".join(f"nameserver {server}\n" for server in servers)
    for keyword, values in (("search", searches), ("options", options)):
        text += f"{keyword} {' '.join(values)}\n" if values else ""
    return text


def short_names(full: str, namespace: str) -> list[str]:
    """List the short forms of a name that the search domains of ``namespace`` permit."""
    forms = [full]
    for domain in (DOMAIN, f"svc.{DOMAIN}", f"{namespace}.svc.{DOMAIN}"):
        if full.endswith(f".svc.{DOMAIN}") and full.endswith(f".{domain}"):
            forms.append(full.removesuffix(f".{domain}"))
    return forms


class PodFiles:
    """The folder of all pods' files: ``FOLDER/POD_UID/{hosts,resolv.conf}``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(
        self, pod: Pod, *, ip: str, netns: str | None, hosts: str, resolv: str
    ) -> NetworkAttachment:
        folder = self._folder / pod.metadata.uid
        folder.mkdir(parents=True, exist_ok=True)
        _rewrite(folder / "hosts", hosts)
        _rewrite(folder / "resolv.conf", resolv)
        return NetworkAttachment(
            ip=ip,
            netns_path=netns,
            hostname=system_name(pod),
            hosts_path=folder / "hosts",
            resolv_path=folder / "resolv.conf",
        )

    def rewrite_hosts(self, pod_uid: str, hosts: str) -> None:
        """Replace the content of a hosts file, which may be mounted already."""
        _rewrite(self._folder / pod_uid / "hosts", hosts)

    def remove(self, pod_uid: str) -> None:
        shutil.rmtree(self._folder / pod_uid, ignore_errors=True)

    def remove_all(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def read_text(path: Path) -> str:
    """Return the text of a file of the host; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _rewrite(path: Path, text: str) -> None:
    """Write in place: a bind mount refers to the inode, so a replaced file would not be seen."""
    content = text.encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


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
    candidate. Raises NetworkError: every candidate overlaps.
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
        """Return a free address. Raises NetworkError: no address is free."""
        for offset in self._from_next():
            if offset not in self._used:
                self._used.add(offset)
                self._next = offset + 1
                return str(ipaddress.IPv4Address(self._first + offset))
        raise NetworkError(
            f"all {self._size - 2} pod addresses are in use; delete pods or widen --pod-cidr"
        )

    def release(self, address: str) -> None:
        self._used.discard(int(ipaddress.IPv4Address(address)) - self._first)

    def offset(self, address: str) -> int:
        """Return the offset of an address in its range: a short unique number."""
        return int(ipaddress.IPv4Address(address)) - self._first

    def _from_next(self) -> Iterator[int]:
        # The first address is that of the network, the last one is for broadcasts.
        usable = self._size - 2
        for step in range(usable):
            yield (self._next - 1 + step) % usable + 1
