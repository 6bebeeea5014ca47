"""Nodes by network domain, with each GPU as a cell; one node."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from gangline.api.core.node import Node
from gangline.api.resource_list import GPU, pod_request_for
from gangline.dashboard.observed import WatchedPod
from gangline.dashboard.rights import EVENT_KIND, POD_KIND
from gangline.dashboard.views.base import Observation, View
from gangline.sdk.events import EventRecord, read_events
from gangline.sdk.jobs import JOB_NAME_LABEL, pod_status_text
from gangline.sdk.nodes import NodeRow, read_node
from gangline.sdk.usage import GpuUsage, ResourceUsage

COLOURS = 8
"""Number of colours of jobs; a cell names its job too."""
GANG_SIZES = (1, 2, 4, 8)
_ZONE = "topology.kubernetes.io/zone"


class GpuCell(View, frozen=True):
    job: str = ""
    """``namespace/name`` of the job or pod that has it; empty if it is free or hidden."""
    path: str = ""
    """Address of the job's page; empty for others."""
    colour: int = 0
    """1 to ``COLOURS``: equal for the GPUs of a job; 0: free."""
    is_used: bool = False
    is_broken: bool = False
    use: float | None = None


class NodeView(View, frozen=True):
    name: str
    status: str
    """As ``gangline top node`` prints it."""
    is_ready: bool
    problem: str
    gpus: tuple[GpuCell, ...]
    gpus_free: int
    cpu_total: int
    """Thousandths of a core."""
    cpu_allocated: int
    memory_total: int
    memory_allocated: int
    pods: int
    cpu_used: float | None = None
    memory_used: float | None = None
    gpus_used: float | None = None

    @property
    def takes_pods(self) -> bool:
        return self.status == "Ready"


class Domain(View, frozen=True):
    name: str
    tier: int
    nodes: tuple[NodeView, ...]
    gpus: int = 0
    gpus_free: int = 0


class NodesView(View, frozen=True):
    domains: tuple[Domain, ...]
    total: int
    ready: int
    gpus: int
    gpus_allocated: int
    gpus_used: float | None
    """Sum of their use; None if nothing measures it."""
    fits: tuple[tuple[int, int], ...]
    """For a number of GPUs per pod the largest number of such pods for which there are GPUs now."""


def nodes_view(
    seen: Observation,
    domains: Sequence[tuple[str, int, Sequence[str]]],
    usage: Mapping[tuple[str, str], ResourceUsage] | None = None,
    gpus: GpuUsage | None = None,
) -> NodesView:
    """Return all nodes; ``domains`` are name, tier and nodes of each network domain, the closest
    tier first.
    """
    rows = {row.name: row for row in read_node_rows(seen)}
    views = {name: _node(seen, row, usage or {}, gpus) for name, row in sorted(rows.items())}
    grouped = _group(views, domains, seen.cluster.nodes)
    free = [view.gpus_free for view in views.values() if view.takes_pods]
    total = sum(len(view.gpus) for view in views.values())
    return NodesView(
        domains=grouped,
        total=len(views),
        ready=sum(view.takes_pods for view in views.values()),
        gpus=total,
        gpus_allocated=sum(row.allocated.get(GPU, 0) for row in rows.values()),
        gpus_used=sum(gpus.nodes.values()) if gpus else None,
        fits=tuple((size, sum(count // size for count in free)) for size in GANG_SIZES)
        if total
        else (),
    )


def read_node_rows(seen: Observation) -> list[NodeRow]:
    """Return nodes with their allocation, as ``gangline top node`` does."""
    cluster = seen.cluster
    return [read_node(node, cluster.load(name).allocated) for name, node in cluster.nodes.items()]


def _group(
    views: Mapping[str, NodeView],
    domains: Sequence[tuple[str, int, Sequence[str]]],
    nodes: Mapping[str, Node],
) -> tuple[Domain, ...]:
    """Group nodes by their closest network domain, else by zone."""
    domain_of: dict[str, tuple[str, int]] = {}
    for domain, tier, members in domains:
        for member in members:
            domain_of.setdefault(member, (domain, tier))
    members_of: defaultdict[tuple[str, int], list[NodeView]] = defaultdict(list)
    for name, view in views.items():
        zone = nodes[name].metadata.labels.get(_ZONE, ""), 0
        members_of[domain_of.get(name, zone)].append(view)
    return tuple(
        Domain(
            *place,
            tuple(members),
            sum(len(view.gpus) for view in members),
            sum(view.gpus_free for view in members),
        )
        for place, members in sorted(members_of.items(), key=lambda item: item[0])
    )


def _node(
    seen: Observation,
    row: NodeRow,
    usage: Mapping[tuple[str, str], ResourceUsage],
    gpus: GpuUsage | None,
) -> NodeView:
    used = usage.get(("", row.name))
    return NodeView.of(
        row,
        is_ready=row.status.startswith("Ready"),
        problem=row.not_ready_reason,
        gpus=tuple(_cells(seen, row, gpus)),
        gpus_free=max(0, row.total.get(GPU, 0) - row.allocated.get(GPU, 0)),
        cpu_total=row.total.get("cpu", 0),
        cpu_allocated=row.allocated.get("cpu", 0),
        memory_total=row.total.get("memory", 0),
        memory_allocated=row.allocated.get("memory", 0),
        pods=row.allocated.get("pods", 0),
        cpu_used=used.cpu if used else None,
        memory_used=used.memory if used else None,
        gpus_used=gpus.nodes.get(row.name) if gpus else None,
    )


def _cells(seen: Observation, row: NodeRow, gpus: GpuUsage | None) -> list[GpuCell]:
    """Return the GPUs of a node: those of each pod, the free ones, the broken ones."""
    cells: list[GpuCell] = []
    for pod, count in seen.cluster.load(row.name).pods:
        if not count:
            continue
        devices = gpus.by_pod.get((pod.metadata.namespace, pod.metadata.name), ()) if gpus else ()
        job, path, colour = _holder(seen, pod)
        for number in range(count):
            use = devices[number].utilization if number < len(devices) else None
            cells.append(GpuCell(job, path, colour, is_used=True, use=use))
    cells += [GpuCell()] * max(0, row.total.get(GPU, 0) - len(cells))
    return cells + [GpuCell(is_broken=True)] * row.unhealthy_gpus


def _holder(seen: Observation, pod: WatchedPod) -> tuple[str, str, int]:
    """Return name, address and colour of what holds a GPU; a name only if it may be read."""
    meta = pod.metadata
    owner = meta.controller
    colour = 1 + sum((owner.uid if owner else meta.uid).encode()) % COLOURS
    if not seen.scope.sees(POD_KIND, meta.namespace):
        return "", "", colour
    entry = seen.cluster.by_uid.get(owner.uid) if owner else None
    if entry is None:
        return f"{meta.namespace}/{meta.name}", "", colour
    namespace, _, name = entry.key
    visible = seen.scope.sees_job(entry.kind, namespace)
    return f"{namespace}/{name}", entry.path if visible else "", colour


class NodePodRow(View, frozen=True):
    namespace: str
    name: str
    status: str
    job: str = ""
    path: str = ""
    gpus: int = 0


class NodeCondition(View, frozen=True):
    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


class NodeFailureRow(View, frozen=True):
    at: datetime | None
    job: str
    path: str
    replica: str
    cause: str
    blame: str


class NodePage(View, frozen=True):
    node: NodeView
    address: str
    role: str
    kernel: str
    kubelet: str
    gpu_mode: str
    taints: tuple[str, ...]
    conditions: tuple[NodeCondition, ...]
    pods: tuple[NodePodRow, ...]
    hidden_pods: int
    """Pods that the viewer may not list."""
    failures: tuple[NodeFailureRow, ...]
    events: tuple[tuple[datetime, str, str], ...]
    """Time, reason and message of what was reported about it, the newest first."""


def node_details(
    seen: Observation,
    node: Node,
    failures: Sequence[NodeFailureRow],
    usage: Mapping[tuple[str, str], ResourceUsage] | None = None,
    gpus: GpuUsage | None = None,
) -> NodePage:
    name = node.metadata.name
    pods = seen.cluster.pods_on(name)
    row = read_node(node, seen.cluster.load(name).allocated)
    visible = [pod for pod in pods if seen.scope.sees(POD_KIND, pod.metadata.namespace)]
    info = node.status.node_info
    return NodePage.of(
        row,
        node=_node(seen, row, usage or {}, gpus),
        kernel=info.kernel_version,
        kubelet=info.kubelet_version,
        gpu_mode=str(row.mode),
        taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in node.spec.taints),
        conditions=tuple(
            NodeCondition(one.type, one.status, one.reason, one.message, one.last_transition_time)
            for one in node.status.conditions
        ),
        pods=tuple(_pod(seen, pod) for pod in sorted(visible, key=lambda pod: pod.metadata.name)),
        hidden_pods=len(pods) - len(visible),
        failures=tuple(failures),
        events=tuple(
            (event.last, event.reason, event.message)
            for event in reversed(_node_events(seen, name))
        ),
    )


def _node_events(seen: Observation, name: str) -> list[EventRecord]:
    events = [
        event
        for namespace, stored in seen.cluster.events.items()
        if seen.scope.sees(EVENT_KIND, namespace)
        for event in stored.values()
        if event.involved_object.kind == "Node" and event.involved_object.name == name
    ]
    return read_events(events)


def _pod(seen: Observation, pod: WatchedPod) -> NodePodRow:
    job, path, _ = _holder(seen, pod)
    return NodePodRow(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        status=pod_status_text(pod),
        job=job if pod.metadata.labels.get(JOB_NAME_LABEL) else "",
        path=path,
        gpus=pod_request_for(pod.spec, GPU),
    )
