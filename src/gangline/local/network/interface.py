"""The interface between kubelets and the pod network.

The files of an attachment belong to the network, which rewrites them in place when names change. A
kubelet therefore bind-mounts them and never copies them. They are removed by `detach`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

HostAliases: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""``spec.hostAliases`` as pairs of an address and its names."""


@dataclass(frozen=True, slots=True)
class NetworkAttachment:
    """The network of one pod."""

    ip: str
    """The pod's address, unique in the cluster (``hostNetwork`` pods share their node's)."""

    netns_path: str | None
    """The network namespace to enter; None if the pod shares the host's network."""

    hostname: str
    """The host name that the pod sees."""

    resolv_conf: str
    """The content of the pod's ``/etc/resolv.conf``."""

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

    async def attach(
        self,
        pod_uid: str,
        namespace: str,
        name: str,
        host_network: bool,
        *,
        hostname: str = "",
        subdomain: str = "",
        aliases: HostAliases = (),
    ) -> NetworkAttachment:
        """Assign an address and, on a bridge network, a namespace to the pod.

        ``hostname`` and ``subdomain`` are those of the pod's spec. An empty ``hostname`` means the
        pod's name, an empty ``subdomain`` means none. Raises NetworkError: no address is left, or
        the system refuses.
        """
        ...

    async def detach(self, pod_uid: str) -> None:
        """Release the pod's address and namespace; does nothing for a pod that is not attached."""
        ...
