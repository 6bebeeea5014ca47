"""The pod template of one role."""

from typing import Any

from gangline.cli.jobs.flags import Manifest, Mount, PodFlags, given


def pod_template(pod: PodFlags, container: str, port_name: str = "") -> Manifest:
    """Return the template of pods whose main container has this name."""
    mounts = [*pod.mounts, *pod.code, *_shared_memory(pod.share_memory)]
    main = given(
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
    spec = given(
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
    metadata = given({"labels": pod.labels, "annotations": pod.annotations})
    return given({"metadata": metadata}) | {"spec": spec}


def _environment(pod: PodFlags) -> list[Manifest]:
    """The user's variables; without GPUs, a runtime that hands out all by default is told so."""
    known = {each["name"] for each in pod.environment}
    silent = "NVIDIA_VISIBLE_DEVICES"
    none = [{"name": silent, "value": "void"}]
    return [*pod.environment, *(none if not pod.gpus and silent not in known else [])]


def _resources(pod: PodFlags) -> dict[str, Any]:
    """The same as request and limit unless told otherwise: what is asked for is there."""
    limits = pod.amounts
    requests = limits | given({"cpu": pod.cpu, "memory": pod.memory})
    return {"requests": requests, "limits": dict(limits)} if limits else {}


def _security(pod: PodFlags) -> Manifest:
    return {"capabilities": {"add": ["IPC_LOCK"]}} if pod.rdma else {}


def _shared_memory(size: str) -> list[Mount]:
    """Room in /dev/shm: data loaders pass batches through it, and 64 MiB are soon used up."""
    if not size:
        return []
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [(volume, {"name": "dshm", "mountPath": "/dev/shm"})]


def _distinct(volumes: list[Manifest]) -> list[Manifest]:
    """One volume may be mounted at several places."""
    return list({volume["name"]: volume for volume in volumes}.values())
