"""From flags to a PyTorchJob. Pure: what ``--dry-run`` prints is what is sent."""

from dataclasses import dataclass, field
from typing import Any

from gangline.api.resources import PYTORCH_JOBS

GPU = "nvidia.com/gpu"
CONTAINER = "pytorch"


@dataclass(frozen=True, slots=True)
class PyTorchFlags:
    """What the flags of ``submit pytorch`` say, read and checked."""

    name: str
    image: str
    command: str
    workers: int = 1
    """Pods in all, the master among them."""
    gpus: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    cpu: str = ""
    memory: str = ""
    share_memory: str = ""
    shell: str = "sh"
    working_dir: str = ""
    environment: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    pull_secrets: tuple[str, ...] = ()
    pull_policy: str = ""
    scheduler: str = ""
    priority: str = ""
    queue: str = ""
    retry: int = 0
    clean_task_policy: str = "Running"
    running_timeout_s: int = 0
    ttl_after_finished_s: int = 0
    nproc_per_node: str = ""


def pytorch_job(flags: PyTorchFlags) -> dict[str, Any]:
    """Return the job: one master and ``workers - 1`` workers, all alike."""
    # Where no restart is allowed anyway, Never says so to whoever reads the job.
    restart = "OnFailure" if flags.retry else "Never"
    replica = {"restartPolicy": restart, "template": _template(flags)}
    replicas = {"Master": {"replicas": 1, **replica}}
    if flags.workers > 1:
        replicas["Worker"] = {"replicas": flags.workers - 1, **replica}
    spec: dict[str, Any] = {"runPolicy": _run_policy(flags), "pytorchReplicaSpecs": replicas}
    if flags.nproc_per_node:
        spec["nprocPerNode"] = flags.nproc_per_node
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": _given(
            {"name": flags.name, "labels": flags.labels, "annotations": flags.annotations}
        ),
        "spec": spec,
    }


def _run_policy(flags: PyTorchFlags) -> dict[str, Any]:
    return {
        "cleanPodPolicy": flags.clean_task_policy,
        "backoffLimit": flags.retry,
        **_given(
            {
                "activeDeadlineSeconds": flags.running_timeout_s,
                "ttlSecondsAfterFinished": flags.ttl_after_finished_s,
                "schedulingPolicy": _given({"queue": flags.queue, "priorityClass": flags.priority}),
            }
        ),
    }


def _template(flags: PyTorchFlags) -> dict[str, Any]:
    mounts = [*flags.mounts, *_shared_memory(flags.share_memory)]
    container = _given(
        {
            "name": CONTAINER,
            "image": flags.image,
            "imagePullPolicy": flags.pull_policy,
            "command": [flags.shell, "-c", flags.command],
            "workingDir": flags.working_dir,
            "env": flags.environment,
            "resources": _resources(flags),
            "volumeMounts": [mount for _, mount in mounts],
        }
    )
    spec = _given(
        {
            "containers": [container],
            "volumes": [volume for volume, _ in mounts],
            "nodeSelector": flags.selector,
            "tolerations": flags.tolerations,
            "imagePullSecrets": [{"name": name} for name in flags.pull_secrets],
            "schedulerName": flags.scheduler,
            "priorityClassName": flags.priority,
        }
    )
    metadata = _given({"labels": flags.labels, "annotations": flags.annotations})
    return {"metadata": metadata, "spec": spec} if metadata else {"spec": spec}


def _resources(flags: PyTorchFlags) -> dict[str, Any]:
    """The same as request and limit: what is asked for is there, and no more is taken."""
    amounts = _given({"cpu": flags.cpu, "memory": flags.memory, GPU: flags.gpus})
    amounts |= flags.devices
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def _shared_memory(size: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Room in /dev/shm: data loaders pass batches through it, and 64 MiB are soon used up."""
    if not size:
        return []
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [(volume, {"name": "dshm", "mountPath": "/dev/shm"})]


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not given."""
    return {name: value for name, value in fields.items() if value}
