"""Settings of a kubelet and of the node that it represents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gangline.local.kubelet.records import BackoffSettings

API_SERVER_USER = "kube-apiserver-kubelet-client"
"""The name in the certificate with which the API server identifies itself to kubelets."""
REFUSAL_HEADER = "X-Kubelet-Refusal"
"""The response header with the reason of a refused request."""


@dataclass(frozen=True, slots=True)
class VirtualNodeSpec:
    """A virtual node: a named share of this machine."""

    name: str
    cpu_milli: int
    """CPU for pods, in thousandths of a processor."""

    memory_bytes: int
    gpus: tuple[int, ...] = ()
    """Indices of its GPUs; indices beyond those of the machine are simulated GPUs."""

    resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources besides GPUs, by name."""

    pods: int = 250
    """The maximum number of pods."""

    address: str = "127.0.0.1"
    """The address of the kubelet server, and the host IP of hostNetwork pods."""

    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Settings of a kubelet; defaults are Kubernetes' own where nothing else is noted."""

    data: Path
    """The folder of all files of this node's pods."""

    cluster: str = "gangline"
    """The name in control groups and memory folders, by which leftovers are found."""

    port: int = 0
    """The port of the kubelet server, for the node's status."""

    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    heartbeat_s: float = 10.0
    """Seconds between renewals of the lease; the node counts as lost after 40 s without one."""

    refresh_s: float = 15.0
    """Seconds between updates of ConfigMap and Secret volumes."""

    token_use_s: float | None = None
    """Seconds after which a token is renewed even if it is valid for longer; None: a day."""

    retry_s: float = 3.0
    """Seconds before a failed preparation or configuration is tried again."""
