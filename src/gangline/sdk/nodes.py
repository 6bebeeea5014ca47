"""Nodes with what is allocated on them: the rows of ``gangline top node`` and of the dashboard."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gangline.api.core.node import Node
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.resource_list import GPU, parse_resources, pod_request, sum_resources


class PodOnNode(Protocol):
    """The part of a pod that is read here: complete, or with the fields that lists read."""

    @property
    def spec(self) -> Any:
        """Requests and node."""

    @property
    def status(self) -> Any:
        """Its phase."""


_ROLE = "node-role.kubernetes.io/"


class GpuMode(StrEnum):
    """How a node allocates its GPUs, with Arena's names."""

    NONE = "none"
    EXCLUSIVE = "exclusive"
    TOPOLOGY = "topology"
    SHARE = "share"


_MODE_RESOURCES = {
    GpuMode.SHARE: "aliyun.com/gpu-mem",
    GpuMode.TOPOLOGY: "aliyun.com/gpu",
    GpuMode.EXCLUSIVE: GPU,
}
"""The resource that a node of each mode advertises."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as a row."""

    name: str
    address: str
    role: str
    status: str
    total: Mapping[str, int]
    allocated: Mapping[str, int]
    cpu_used: float | None = None
    """Cores; None if the cluster has no metrics."""
    memory_used: float | None = None
    """Bytes; None if the cluster has no metrics."""
    gpus_used: float | None = None
    """Sum of the utilization of its GPUs; None if no exporter measures them."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    not_ready_reason: str = ""
    """Why the node is not ready, from its Ready condition."""

    @property
    def mode(self) -> GpuMode:
        """How it allocates its GPUs."""
        modes = (mode for mode, name in _MODE_RESOURCES.items() if self.total.get(name))
        return next(modes, GpuMode.NONE)

    @property
    def unhealthy_gpus(self) -> int:
        """GPUs of the node that are not allocatable."""
        return max(0, self.capacity.get(GPU, 0) - self.total.get(GPU, 0))


def read_nodes(nodes: Iterable[Node], pods: Iterable[PodOnNode]) -> list[NodeRow]:
    """Return nodes with the requests of the pods on them that have not ended."""
    on_node: defaultdict[str, list[PodOnNode]] = defaultdict(list)
    for pod in pods:
        on_node[pod.spec.node_name].append(pod)
    return [read_node(node, sum_requests(on_node[node.metadata.name])) for node in nodes]


def sum_requests(pods: Iterable[PodOnNode]) -> Mapping[str, int]:
    """Return the requests of the pods that have not ended, and their number."""
    return sum_resources(
        {**pod_request(pod.spec), "pods": 1}
        for pod in pods
        if pod.status.phase not in TERMINAL_PHASES
    )


def read_node(node: Node, allocated: Mapping[str, int]) -> NodeRow:
    """Return a node with the amounts that are allocated on it."""
    roles = [key.removeprefix(_ROLE) for key in node.metadata.labels if key.startswith(_ROLE)]
    ready = is_condition_true(node.status.conditions, "Ready")
    status = "Ready" if ready else "NotReady"
    condition = find_condition(node.status.conditions, "Ready")
    addresses = {address.type: address.address for address in node.status.addresses}
    return NodeRow(
        name=node.metadata.name,
        address=addresses.get("InternalIP", ""),
        role=",".join(sorted(roles)) or "<none>",
        status=f"{status},SchedulingDisabled" if node.spec.unschedulable else status,
        total=parse_resources(node.status.allocatable),
        allocated=allocated,
        capacity=parse_resources(node.status.capacity),
        not_ready_reason=""
        if ready or condition is None
        else condition.message or condition.reason,
    )
