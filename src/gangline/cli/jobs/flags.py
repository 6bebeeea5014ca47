"""What the flags of ``submit`` say once they are read and checked; kinds of jobs are made of it."""

from dataclasses import dataclass, field
from typing import Any

from gangline.api.resourcelist import GPU

Manifest = dict[str, Any]
Mount = tuple[Manifest, Manifest]
"""A volume of the pod, and where its container mounts it."""


@dataclass(frozen=True, slots=True)
class PodFlags:
    """One role's pods. Roles of a job differ in a few of these only."""

    image: str
    command: tuple[str, ...] = ()
    """Empty: what the image says."""
    gpus: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    cpu: str = ""
    memory: str = ""
    cpu_limit: str = ""
    """Empty: as requested."""
    memory_limit: str = ""
    share_memory: str = ""
    working_dir: str = ""
    environment: tuple[Manifest, ...] = ()
    mounts: tuple[Mount, ...] = ()
    code: tuple[Mount, ...] = ()
    """Where the code lies that init containers fetch."""
    init_containers: tuple[Manifest, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    affinity: Manifest = field(default_factory=dict)
    port: int = 0
    pull_secrets: tuple[str, ...] = ()
    pull_policy: str = ""
    scheduler: str = ""
    priority: str = ""
    rdma: bool = False
    host_network: bool = False
    host_ipc: bool = False
    host_pid: bool = False

    @property
    def amounts(self) -> dict[str, Any]:
        """Resources of one pod, as limits."""
        amounts: dict[str, Any] = {
            "cpu": self.cpu_limit or self.cpu,
            "memory": self.memory_limit or self.memory,
            GPU: self.gpus,
            **self.devices,
            **({"rdma/hca": 1} if self.rdma else {}),
        }
        return given(amounts)


@dataclass(frozen=True, slots=True)
class JobFlags:
    """A whole job."""

    name: str
    pod: PodFlags
    workers: int = 1
    queue: str = ""
    retry: int = 0
    clean_task_policy: str = "Running"
    running_timeout_s: int = 0
    ttl_after_finished_s: int = 0
    gang: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """All flags by their names with underscores: a kind takes those that only it knows."""


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not given."""
    return {name: value for name, value in fields.items() if value}
