"""Builders of the jobs that the scenarios submit, as a user would write them in YAML."""

from typing import Any

Manifest = dict[str, Any]

IMAGE = "busybox:1"


def template(command: str, *, shared: str = "", cpu: str = "10m") -> Manifest:
    """A pod template that runs ``command`` in a shell; ``shared`` is a host folder at /shared."""
    container: Manifest = {
        "name": "pytorch",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}},
    }
    spec: Manifest = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if shared:
        container["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
        spec["volumes"] = [
            {"name": "shared", "hostPath": {"path": shared, "type": "DirectoryOrCreate"}}
        ]
    return {"spec": spec}


def replica(command: str, replicas: int = 1, restart: str = "OnFailure", **more: Any) -> Manifest:
    """One entry of pytorchReplicaSpecs."""
    return {
        "replicas": replicas,
        "restartPolicy": restart,
        "template": template(command, **more),
    }


def job(
    name: str,
    master: Manifest | None = None,
    worker: Manifest | None = None,
    **run_policy: Any,
) -> Manifest:
    """A PyTorchJob of the given replicas; keywords go into its run policy."""
    roles = {"Master": master, "Worker": worker}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"} | run_policy,
            "pytorchReplicaSpecs": {role: spec for role, spec in roles.items() if spec},
        },
    }


def fails_first() -> str:
    """A command that fails the first time in a pod's name and succeeds afterwards."""
    mark = "/shared/$(hostname).seen"
    return f'if [ -e "{mark}" ]; then exit 0; fi; touch "{mark}"; exit 1'


def until(mark: str) -> str:
    """A command that runs until the file ``mark`` appears in /shared, then succeeds."""
    return f"while [ ! -e /shared/{mark} ]; do sleep 0.2; done"
