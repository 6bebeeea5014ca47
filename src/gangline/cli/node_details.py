"""``top node -d``: each node with the pods on it, and with its GPUs one by one.

Arena's blocks and columns come first; the job of each pod and its other requests follow.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.cli.gpu_views import pod_devices, format_duty_cycle
from gangline.cli.node_views import (
    GPU,
    GpuMode,
    NodeRow,
    node_data,
    format_share,
    format_used,
    format_gpus,
)
from gangline.cli.output import format_table

if TYPE_CHECKING:
    from gangline.api.pod import Pod
    from gangline.sdk.gpu_usage import GpuDevice, GpuUsage

_GI = 2**30
_LABEL = 15
_RULE = "-" * 89

_DESCRIPTIONS = {
    GpuMode.NONE: "The node has no GPUs.",
    GpuMode.EXCLUSIVE: "Each GPU is allocated to one pod.",
    GpuMode.TOPOLOGY: "Each GPU is allocated to one pod, selected by GPU topology.",
    GpuMode.SHARE: "Pods share the memory of GPUs.",
}


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod on a node that has GPUs or belongs to a job."""

    namespace: str
    name: str
    status: str
    job: str
    """Kind and name, such as ``pytorchjob/digits``; empty for a pod without job."""
    gpus: int
    milli_cpu: int
    memory_bytes: int
    gpus_used: float | None = None
    gpu_indexes: tuple[str, ...] = ()
    """Indexes of the pod's GPUs; empty if no exporter measures them."""


@dataclass(frozen=True, slots=True)
class NodeDetails:
    """A node with its pods and GPUs."""

    view: NodeRow
    instances: tuple[NodePod, ...]
    devices: "tuple[GpuDevice, ...]" = ()
    """GPUs that an exporter measures."""


def read_details(
    views: Iterable[NodeRow], pods: "Iterable[Pod]", busy: "GpuUsage | None"
) -> list[NodeDetails]:
    """Return nodes with the pods on them that have not ended; pods with most GPUs come first."""
    on: dict[str, list[NodePod]] = {view.name: [] for view in views}
    for pod in pods:
        if pod.spec.node_name in on and pod.status.phase not in {"Succeeded", "Failed"}:
            instance = _read_node_pod(pod, busy)
            if instance.gpus or instance.job:
                on[pod.spec.node_name].append(instance)
    devices = busy.devices if busy else {}
    return [
        NodeDetails(
            view,
            tuple(sorted(on[view.name], key=lambda each: (-each.gpus, each.namespace, each.name))),
            tuple(devices.get(view.name, ())),
        )
        for view in views
    ]


def _read_node_pod(pod: "Pod", busy: "GpuUsage | None") -> NodePod:
    from gangline.api.resourcelist import pod_request  # noqa: PLC0415
    from gangline.sdk.jobs import JOB_NAME_LABEL, pod_status_text  # noqa: PLC0415

    requests = pod_request(pod.spec)
    key = (pod.metadata.namespace, pod.metadata.name)
    name, owner = pod.metadata.labels.get(JOB_NAME_LABEL, ""), pod.metadata.controller
    return NodePod(
        *key,
        status=pod_status_text(pod),
        job=f"{owner.kind.lower()}/{name}" if name and owner else name,
        gpus=requests.get(GPU, 0),
        milli_cpu=requests.get("cpu", 0),
        memory_bytes=requests.get("memory", 0),
        gpus_used=busy.pods.get(key) if busy else None,
        gpu_indexes=tuple(each.index for each in pod_devices(busy, *key)),
    )


def format_nodes(nodes: Iterable[NodeDetails]) -> str:
    """Return one block of text for each node."""
    return f"\n\n{_RULE}\n\n".join(format_node(node) for node in nodes)


def format_node(details: NodeDetails) -> str:
    view = details.view
    facts = [
        ("Name", view.name),
        ("Status", view.status),
        ("Role", view.role),
        ("Type", view.mode),
        ("Address", view.address or "N/A"),
        ("Description", _DESCRIPTIONS[view.mode]),
        ("CPU", f"{format_share(view, 'cpu')} allocated{format_used(view, 'cpu')}"),
        ("Memory", f"{format_share(view, 'memory')} allocated{format_used(view, 'memory')}"),
        ("Pods", format_share(view, "pods")),
    ]
    if view.not_ready_reason:
        facts.insert(2, ("Reason", view.not_ready_reason))
    blocks = ["\n".join(f"{name + ':':{_LABEL}}{value}" for name, value in facts)]
    if details.instances:
        blocks.append(f"Instances:\n{_pod_table(details)}")
    if details.devices:
        blocks.append(f"GPUs:\n{_device_table(details.devices)}")
    if view.mode is not GpuMode.NONE or view.unhealthy_gpus:
        blocks.append(f"GPU Summary:\n{_summary(details)}")
    return "\n\n".join(blocks)


def _pod_table(details: NodeDetails) -> str:
    measured = bool(details.devices)
    head = ["NAMESPACE", "NAME", "STATUS", "GPU(Requested)"]
    head += ["GPU(Allocated)"] if measured else []
    head += ["JOB", "CPU(Requested)", "MEMORY(Requested)"]
    head += ["GPU(Used)"] if measured else []
    rows = [
        [
            each.namespace,
            each.name,
            each.status,
            each.gpus,
            *([",".join(each.gpu_indexes)] if measured else []),
            each.job,
            f"{each.milli_cpu / 1000:g}",
            f"{round(each.memory_bytes / _GI, 1):g}Gi",
            *([format_gpus(each.gpus_used)] if measured else []),
        ]
        for each in details.instances
    ]
    return format_table(head, rows, indent="  ")


def _device_table(devices: "Sequence[GpuDevice]") -> str:
    head = ["INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE", "INSTANCE"]
    rows = [
        [
            each.index,
            _gibibytes(each.memory_total_bytes),
            _gibibytes(_allocated_memory(each)),
            _gibibytes(each.memory_used_bytes),
            format_duty_cycle(each),
            f"{each.namespace}/{each.pod}" if each.pod else "",
        ]
        for each in devices
    ]
    return format_table(head, rows, indent="  ")


def _allocated_memory(device: "GpuDevice") -> int | None:
    """Memory allocated to a pod: all memory of the GPU, because GPUs are not shared."""
    return device.memory_total_bytes if device.pod else 0


def _gibibytes(count: int | None) -> str:
    return "" if count is None else f"{count / _GI:.1f}Gi"


def _summary(details: NodeDetails) -> str:
    view = details.view
    total, allocated = view.total.get(GPU, 0), view.allocated.get(GPU, 0)
    lines = [f"  Allocated/Total GPUs: {_format_part(allocated, total)}"]
    if view.gpus_used is not None:
        lines.append(f"  Used/Total GPUs: {view.gpus_used:.2f}/{total}")
    if unhealthy := view.unhealthy_gpus:
        lines.append(
            f"  Unhealthy/Total GPUs: {_format_part(unhealthy, view.capacity.get(GPU, 0))}"
        )
    known = [each for each in details.devices if each.memory_total_bytes is not None]
    if known:
        used = sum(each.memory_used_bytes or 0 for each in known)
        sum_total = sum(each.memory_total_bytes or 0 for each in known)
        lines.append(f"  Used/Total GPU Memory: {used / _GI:.1f}/{sum_total / _GI:.1f}Gi")
    return "\n".join(lines)


def _format_part(count: int, total: int) -> str:
    return f"{count}/{total}" + (f" ({100 * count / total:.1f}%)" if total else "")


def details_data(details: NodeDetails) -> dict[str, Any]:
    return node_data(details.view) | {
        "description": _DESCRIPTIONS[details.view.mode],
        "reason": details.view.not_ready_reason,
        "instances": [_node_pod_data(each) for each in details.instances],
        "gpus": [_device_data(each) for each in details.devices],
    }


def _node_pod_data(instance: NodePod) -> Mapping[str, Any]:
    return {
        "namespace": instance.namespace,
        "name": instance.name,
        "status": instance.status,
        "job": instance.job,
        "requestGPUs": instance.gpus,
        "requestMilliCPU": instance.milli_cpu,
        "requestMemoryBytes": instance.memory_bytes,
        "usedGPUs": instance.gpus_used,
        "gpuIndexes": list(instance.gpu_indexes),
    }


def _device_data(device: "GpuDevice") -> Mapping[str, Any]:
    return {
        "index": device.index,
        "totalMemoryBytes": device.memory_total_bytes,
        "allocatedMemoryBytes": _allocated_memory(device),
        "usedMemoryBytes": device.memory_used_bytes,
        "dutyCycle": device.utilization,
        "namespace": device.namespace,
        "instance": device.pod,
    }
