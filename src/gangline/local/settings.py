"""Settings of an embedded cluster."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.directory import DEFAULT_NAME, ClusterDirectory, default_home


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of one cluster; the defaults suit a single user on one machine."""

    name: str = DEFAULT_NAME
    """The name of the cluster; several may run side by side."""

    home: Path = field(default_factory=default_home)
    """The directory of all clusters."""

    nodes: int = 1
    """The number of virtual nodes that the machine is divided into."""

    cpus: float | None = None
    """Processors of each node; None: the machine's, divided by the nodes."""

    memory: str | None = None
    """Memory of each node, as a quantity; None: the machine's, divided by the nodes."""

    gpus: int | None = None
    """GPUs of each node; None: those found, divided by the nodes. GPUs beyond those of the machine
    are simulated, for trials.
    """

    resources: tuple[str, ...] = ()
    """Extended resources of each node, as ``NAME=COUNT``; they are counted, but do not exist."""

    pods: int = 110
    """The maximum number of pods on a node; the default is Kubernetes'."""

    host: str = "127.0.0.1"
    """The address that the API server listens on. Any other than loopback admits other machines."""

    port: int | None = None
    """The API server's port; None: that of the last run, else 16460, else any free one."""

    pod_cidr: str | None = None
    """The range, about a /16, that pods and services share; None: one that no route of the host
    covers.
    """

    network: str = "auto"
    """``bridge``: a namespace for each pod (needs root). ``host``: the host's network for all.
    ``auto``: the first if it works."""

    image_map: Path | None = None
    """A file that maps image names to environments; None: the current environment for all."""

    node_silence_s: float = 40.0
    """Seconds without heartbeat after which a node counts as lost."""

    heartbeat_s: float = 10.0
    """Seconds between a node's heartbeats."""

    shutdown_grace_s: float = 2.0
    """Seconds that pods get to end when the cluster stops, whatever their own grace period is."""

    audit_log: Path | None = None
    """The file of audit events; None: none are written."""

    audit_log_maxsize: int = 100
    """The size in MiB at which the file of audit events is rotated."""

    audit_log_maxbackup: int = 10
    """The number of rotated files of audit events to keep."""

    durability: Durability = Durability.DISK
    """What an acknowledged write survives: a power failure, or only the death of the process."""

    encryption_key: Path | None = None
    """A file of keys that encrypt Secrets; None: the key that a new cluster generates."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=lambda path: str(path.absolute()))

    @property
    def directory(self) -> ClusterDirectory:
        return ClusterDirectory(self.home, self.name)


def changed_settings(encoded: bytes) -> list[str]:
    """Return the settings of ``ClusterSettings.encode`` that differ from the defaults, as
    ``NAME=VALUE``; empty if they cannot be read.
    """
    try:
        given = msgspec.json.decode(encoded, type=dict[str, object])
    except msgspec.DecodeError:
        return []
    defaults = msgspec.json.decode(ClusterSettings().encode(), type=dict[str, object])
    return [
        f"{name}={value}"
        for name, value in given.items()
        if name in defaults and name not in ("name", "home") and value != defaults[name]
    ]
