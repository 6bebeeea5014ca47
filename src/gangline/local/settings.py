"""What may be chosen about an embedded cluster."""

from dataclasses import dataclass, field
from pathlib import Path

from gangline.local.home import DEFAULT_NAME, ClusterHome, default_home


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One cluster. All defaults suit a single user on one machine."""

    name: str = DEFAULT_NAME
    """Which cluster; several may run side by side."""

    home: Path = field(default_factory=default_home)
    """The folder that all clusters live in."""

    nodes: int = 1
    """How many virtual nodes the machine is divided into."""

    cpus: float | None = None
    """Processors of each node; None: the machine's, divided by the nodes."""

    memory: str | None = None
    """Memory of each node, as a quantity; None: the machine's, divided by the nodes."""

    gpus: int | None = None
    """GPUs of each node; None: those found, divided by the nodes; a number beyond what is there
    makes pretended ones, for trying things out."""

    pods: int = 110
    """Most pods on a node; Kubernetes' default."""

    host: str = "127.0.0.1"
    """The address that the API server listens on. Anything but loopback lets others in."""

    port: int | None = None
    """The API server's port; None: that of the last run, else 16460, else any free one."""

    pod_cidr: str | None = None
    """The /16 (or so) that pods and services share; None: one that no route of the host covers."""

    network: str = "auto"
    """``bridge``: a namespace for each pod (needs root). ``host``: the host's network for all.
    ``auto``: the first if it works."""

    image_map: Path | None = None
    """A file that says which environment stands for which image; None: the current one for all."""

    node_silence_s: float = 40.0
    """Seconds without heartbeat after which a node counts as lost."""

    heartbeat_s: float = 10.0
    """Seconds between a node's heartbeats."""

    shutdown_grace_s: float = 2.0
    """How long pods may take to end when the cluster stops, whatever grace they ask for."""

    fake_runtime: bool = False
    """Pods are only pretended to run: for measuring the rest."""

    @property
    def cluster_home(self) -> ClusterHome:
        """The folder of this cluster."""
        return ClusterHome(self.home, self.name)
