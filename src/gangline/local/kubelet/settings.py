"""What a kubelet is told: the node it stands for, and how it keeps house."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gangline.local.kubelet.restarts import BackoffSettings

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


REFUSAL_HEADER = "X-Kubelet-Refusal"
"""The header in which the kubelet's server says why it refuses a request."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A virtual node: a named share of this machine."""

    name: str
    cpu_milli: int
    """Processor time for pods, in thousandths of a processor."""

    memory_bytes: int
    gpus: tuple[int, ...] = ()
    """The indices of the GPUs that this node hands out."""

    pods: int = 250
    """The most pods at a time."""

    address: str = "127.0.0.1"
    """Where the API server reaches the kubelet server, and what hostNetwork pods call home."""

    labels: Mapping[str, str] = field(default_factory=dict)
    storage_bytes: int = 100 << 30


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """How a kubelet keeps house; defaults are Kubernetes' own unless said otherwise."""

    data: Path
    """The folder for everything of this node's pods."""

    cluster: str = "gangline"
    """Names control groups and memory folders, so that leftovers are found again."""

    port: int = 0
    """Where the kubelet server listens (told in the node's status)."""

    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    heartbeat_s: float = 10.0
    """How often the lease is renewed; the node counts as lost after 40 s without."""

    node_status_s: float = 60.0
    """How often the node's status is written although nothing changed (Kubernetes: 5 min)."""

    refresh_s: float = 15.0
    """How often ConfigMap and Secret volumes are brought up to date."""

    retry_s: float = 3.0
    """How long a failed preparation or configuration waits before it is tried again."""

    log_max_bytes: int = 10 << 20
    log_max_files: int = 5
    prune_finished_s: float = 300.0
    """How long an ended pod keeps its written files; its logs stay until it is deleted."""

    environment: Path = Path(sys.prefix)
    """The Python environment that stands in for images without an entry in the map."""

    path: str = _SYSTEM_PATH
    """Where commands are looked for, after the environment's own."""


def machine_memory() -> int:
    """The memory of this machine in bytes."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return 0


def disk_bytes(folder: Path) -> int:
    """The size of the file system that a folder is on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).total
