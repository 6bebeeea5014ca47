"""The pod template of one role."""

from typing import Any

from gangline.cli.jobs.flags import Manifest, Mount, PodFlags, non_empty


def pod_template(pod: PodFlags, container: str, port_name: str = "") -> Manifest:
    """Return a pod template whose main container is named ``container``."""
    mounts = [*pod.mounts, *pod.code, *_shared_memory(pod.share_memory)]
    main = non_empty(
        {
            "name": container,
            "image": pod.image,
            "imagePullPolicy": pod.pull_policy,
            "command": list(pod.command),
            "workingDir": pod.working_dir,
            "env": _environment(pod),
            "ports": [{"name": port_name, "containerPort": pod.port}] if pod.port else [],
            "resources": _resources(pod),
            "securityContext": _security(pod),
            "volumeMounts": [mount for _, mount in mounts],
        }
    )
    spec = non_empty(
        {
            "initContainers": list(pod.init_containers),
            "containers": [main],
            "volumes": _distinct([volume for volume, _ in mounts]),
            "nodeSelector": pod.selector,
            "tolerations": list(pod.tolerations),
            "affinity": pod.affinity,
            "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
            "schedulerName": pod.scheduler,
            "priorityClassName": pod.priority,
            "hostNetwork": pod.host_network,
            "dnsPolicy": "ClusterFirstWithHostNet" if pod.host_network else "",
            "hostIPC": pod.host_ipc,
            "hostPID": pod.host_pid,
        }
    )
    metadata = non_empty({"labels": pod.labels, "annotations": pod.annotations})
    return non_empty({"metadata": metadata}) | {"spec": spec}


def _environment(pod: PodFlags) -> list[Manifest]:
    """Return the user's variables; pods without GPUs opt out of a runtime that exposes all GPUs."""
    known = {each["name"] for each in pod.environment}
    silent = "NVIDIA_VISIBLE_DEVICES"
    none = [{"name": silent, "value": "void"}]
    return [*pod.environment, *(none if not pod.gpus and silent not in known else [])]


def _resources(pod: PodFlags) -> dict[str, Any]:
    """Return requests and limits; they are equal unless the flags give limits."""
    limits = pod.amounts
    requests = limits | non_empty({"cpu": pod.cpu, "memory": pod.memory})
    return {"requests": requests, "limits": dict(limits)} if limits else {}


def _security(pod: PodFlags) -> Manifest:
    return {"capabilities": {"add": ["IPC_LOCK"]}} if pod.rdma else {}


def _shared_memory(size: str) -> list[Mount]:
    """Mount a larger /dev/shm: data loaders pass batches through it, and 64 MiB are too little."""
    if not size:
        return []
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [(volume, {"name": "dshm", "mountPath": "/dev/shm"})]


def _distinct(volumes: list[Manifest]) -> list[Manifest]:
    """Remove duplicates: one volume may have several mounts."""
    return list({volume["name"]: volume for volume in volumes}.values())
