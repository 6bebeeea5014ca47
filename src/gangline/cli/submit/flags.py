"""Values of the flags of ``submit`` after parsing: the input of the builders.

``owned_object`` starts an object that a job owns: named after it, created after it, deleted with
it.
"""

from dataclasses import dataclass, field
from typing import Any

from gangline.api.resource_list import GPU

Manifest = dict[str, Any]
Mount = tuple[Manifest, Manifest]
"""A volume of the pod, and the volume mount of its container."""


@dataclass(frozen=True, slots=True)
class PodFlags:
    """The pods of one role. Roles of a job differ in few of these fields."""

    image: str
    command: tuple[str, ...] = ()
    """Empty: the image's own command."""
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
    """Volumes with code that init containers fetch."""
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
        """Resource limits of one pod."""
        amounts: dict[str, Any] = {
            "cpu": self.cpu_limit or self.cpu,
            "memory": self.memory_limit or self.memory,
            GPU: self.gpus,
            **self.devices,
            **({"rdma/hca": 1} if self.rdma else {}),
        }
        return non_empty(amounts)


@dataclass(frozen=True, slots=True)
class JobFlags:
    """A job with the flags of its pods."""

    name: str
    pod: PodFlags
    workers: int = 1
    """Of a TrainJob also 0: its runtime's number."""
    queue: str = ""
    retry: int = 0
    clean_task_policy: str = "Running"
    running_timeout_s: int = 0
    ttl_after_finished_s: int = 0
    gang: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """All flags by parameter name, for flags that only one kind has."""


def non_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without empty values."""
    return {name: value for name, value in fields.items() if value}


OWNER_ANNOTATION = "gangline.dev/belongs-to"
"""Annotation of an object in a submission: the name of the job that owns it."""


def owned_object(
    job: str, head: Manifest, name: str, labels: dict[str, str] | None = None
) -> Manifest:
    """Return kind and metadata of an object that the job owns."""
    return head | {
        "metadata": {
            "name": name,
            "labels": {"release": job, **(labels or {})},
            "annotations": {OWNER_ANNOTATION: job},
        }
    }
