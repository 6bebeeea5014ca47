"""Objects of upstream operators, built as these build them."""

from typing import Any

from gangline.api.resources import PODS, SERVICES
from gangline.kube.client.client import ApiClient
from integration.operator.cluster import NAMESPACE

Manifest = dict[str, Any]
CONTROLLERS = {"PyTorchJob": "pytorchjob-controller", "MSJob": "msjob-controller"}


def owner(job: Manifest) -> Manifest:
    """The owner reference that every upstream operator writes."""
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def kubeflow_labels(job: Manifest, role: str, index: int) -> dict[str, str]:
    """The labels of today's training operator."""
    prefix = "training.kubeflow.org"
    return {
        f"{prefix}/job-name": job["metadata"]["name"],
        f"{prefix}/operator-name": CONTROLLERS[job["kind"]],
        f"{prefix}/replica-type": role,
        f"{prefix}/replica-index": str(index),
    }


def old_labels(job: Manifest, role: str, index: int) -> dict[str, str]:
    """The labels from before labels had a prefix."""
    return {
        "group-name": job["apiVersion"].partition("/")[0],
        "job-name": job["metadata"]["name"],
        "replica-type": role,
        "replica-index": str(index),
    }


def paddle_labels(job: Manifest, role: str, index: int) -> dict[str, str]:
    """The labels of PaddleJob's operator, none of which names the job."""
    return {"paddle-res-name": replica(job, role, index), "paddle-res-type": role}


def replica(job: Manifest, role: str, index: int) -> str:
    """The name of a replica's pod and service."""
    return f"{job['metadata']['name']}-{role}-{index}"


def _meta(job: Manifest, name: str, labels: dict[str, str] | None, owned: bool) -> Manifest:
    meta: Manifest = {"name": name, "namespace": NAMESPACE}
    if labels:
        meta["labels"] = labels
    if owned:
        meta["ownerReferences"] = [owner(job)]
    return meta


async def make_pod(
    client: ApiClient,
    job: Manifest,
    role: str,
    index: int,
    labels: dict[str, str],
    *,
    container: str,
    owned: bool = True,
) -> str:
    """Make a replica's pod; returns its uid."""
    pod = await client.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _meta(job, replica(job, role, index), labels, owned),
            "spec": {"restartPolicy": "Never", "containers": [{"name": container, "image": "x"}]},
        },
        NAMESPACE,
    )
    return pod.metadata.uid


async def make_service(
    client: ApiClient,
    job: Manifest,
    role: str,
    index: int,
    labels: dict[str, str] | None,
    selector: dict[str, str],
    *,
    owned: bool = True,
) -> str:
    """Make a replica's headless service; returns its uid."""
    service = await client.create(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _meta(job, replica(job, role, index), labels, owned),
            "spec": {
                "clusterIP": "None",
                "selector": selector,
                "ports": [{"name": "p-0", "port": 36000}],
            },
        },
        NAMESPACE,
    )
    return service.metadata.uid
