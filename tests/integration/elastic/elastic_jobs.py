"""ElasticJobs for tests on an embedded cluster."""

from pathlib import Path
from typing import Any


def elastic_job(folder: Path, launcher: str, workers: int) -> dict[str, Any]:
    """A job named ``train`` whose pods mount ``folder`` at its own path.

    Args:
        folder: shared by all pods.
        launcher: arguments of the launcher, with the script.
        workers: number of pods.
    """
    worker = {
        "name": "main",
        "image": "gangline/examples-pytorch:1",
        "command": ["bash", "-c", f"exec python -m gangline.elastic.launcher {launcher}"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "volumeMounts": [{"name": "shared", "mountPath": str(folder)}],
    }
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "containers": [worker],
        "volumes": [{"name": "shared", "hostPath": {"path": str(folder)}}],
    }
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "train"},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "replicaSpecs": {"worker": {"replicas": workers, "template": {"spec": spec}}},
        },
    }
