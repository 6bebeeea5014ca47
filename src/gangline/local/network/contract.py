"""What a kubelet asks of the network, and what it gets: the seam between the two.

The files named by an attachment belong to the network: they are rewritten in place when names
change, so a kubelet bind-mounts them and never copies them. They are gone after `detach`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

Aliases: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""``spec.hostAliases`` as pairs of an address and its names."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod's place on the network."""

    ip: str
    """The pod's address, unique in the cluster (``hostNetwork`` pods share their node's)."""

    netns_path: str | None
    """The network namespace to enter, or None: the pod shares the host's network."""

    hostname: str
    """What ``hostname`` should print in the pod."""

    hosts_file: str
    """What the pod's ``/etc/hosts`` said at the time of attaching."""

    resolv_conf: str
    """What the pod's ``/etc/resolv.conf`` says."""

    hosts_path: Path
    """The file to bind-mount as ``/etc/hosts``; names that appear later are added to it."""

    resolv_path: Path
    """The file to bind-mount as ``/etc/resolv.conf``."""


class NetworkError(Exception):
    """The network cannot do what was asked; the message says what a person can do."""


class PodNetwork(Protocol):
    """Places for pods. ``attach`` may be repeated for one pod and gives the same answer."""

    async def attach(
        self,
        pod_uid: str,
        namespace: str,
        name: str,
        host_network: bool,
        *,
        hostname: str = "",
        subdomain: str = "",
        aliases: Aliases = (),
    ) -> Attachment:
        """Give the pod an address and, where there is one, a namespace.

        ``hostname`` and ``subdomain`` are those of the pod's spec; empty means its name, and none.

        Raises:
            NetworkError: no address is left, or the system refuses.
        """
        ...

    async def detach(self, pod_uid: str) -> None:
        """Take the pod's place back; does nothing for a pod without one."""
        ...
