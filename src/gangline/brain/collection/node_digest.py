"""Digestion of nodes: what they offer, and what the bound pods leave free. Pure."""

from collections.abc import Iterable

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, parse_resource
from gangline.brain.facts.records import NodeCapacity

MODEL_LABELS = ("nvidia.com/gpu.product", "gangline.dev/gpu-model")
"""Labels of GPU feature discovery, then of nodes that are labelled by hand."""
TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")


def node_model(node: Node) -> str:
    """Return the device model of a node; empty if no label gives it."""
    labels = node.metadata.labels
    return next((labels[key] for key in MODEL_LABELS if key in labels), "")


def digest_node(node: Node, gpus_used: int) -> NodeCapacity:
    """Return the capacity of a node. A cordoned node has nothing free."""
    gpus = _amount(node, GPU)
    free = 0 if node.spec.unschedulable else max(0, gpus - gpus_used)
    return NodeCapacity(
        name=node.metadata.name,
        gpu_model=node_model(node),
        gpus=gpus,
        gpus_free=free,
        cpu_millis=_amount(node, CPU),
        memory_bytes=_amount(node, MEMORY),
        labels=tuple(
            (key, node.metadata.labels[key])
            for key in TOPOLOGY_LABELS
            if key in node.metadata.labels
        ),
    )


def gpus_by_node(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the devices that bound pods hold, by node."""
    used: dict[str, int] = {}
    for pod in pods:
        if not pod.spec.node_name or pod.status.phase in TERMINAL_PHASES:
            continue
        for container in pod.spec.containers:
            resources = container.resources
            written = resources.requests.get(GPU) or resources.limits.get(GPU) or 0
            try:
                count = parse_resource(GPU, written)
            except QuantityError:
                continue
            used[pod.spec.node_name] = used.get(pod.spec.node_name, 0) + count
    return used


def _amount(node: Node, resource: str) -> int:
    try:
        return max(0, parse_resource(resource, node.status.allocatable.get(resource) or 0))
    except QuantityError:
        return 0
