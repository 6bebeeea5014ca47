"""The interface between kubelets and the pod network.

The files of an attachment belong to the network, which rewrites them in place when names change. A
kubelet therefore bind-mounts them and never copies them. They are removed by `detach`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class PodName:
    """The names of a pod, of which ``hostname`` and ``subdomain`` are those of its spec."""

    namespace: str
    name: str
    hostname: str = ""
    subdomain: str = ""
    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """``spec.hostAliases`` as pairs of an address and its names."""

    @property
    def host(self) -> str:
        """The pod's host name: that of its spec, else its name, at most 63 characters long."""
        return (self.hostname or self.name)[:63].rstrip("-.")

    @property
    def names(self) -> tuple[str, ...]:
        """The pod's names; the full name comes first if a service gives it one."""
        if not self.subdomain:
            return (self.host,)
        return (f"{self.host}.{self.subdomain}.{self.namespace}.svc.{DOMAIN}", self.host)


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

    async def attach(self, pod_uid: str, pod: PodName, host_network: bool) -> NetworkAttachment:
        """Assign an address and, on a bridge network, a namespace to the pod. Raises NetworkError:
        no address is left, or the system refuses.
        """
        ...

    async def detach(self, pod_uid: str) -> None:
        """Release the pod's address and namespace; does nothing for a pod that is not attached."""
        ...
