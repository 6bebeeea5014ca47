"""Nodes and GPUs as rows and plain data: Arena's columns and keys, then ours.

Columns of GPU metrics appear only if an exporter measures them. A sparkline shows the recent values
of a figure in one cell; all of a table have one scale.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gangline.api.figures import format_figure, plain_number
from gangline.api.resource_list import GPU
from gangline.cli.render.output import format_table, rule
from gangline.sdk.nodes import NodeRow

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job
    from gangline.sdk.usage import GpuDevice, GpuUsage

BARS = "▁▂▃▄▅▆▇█"
LENGTH = 20
"""Number of values in a sparkline."""


def sparkline(values: Sequence[float], highest: float) -> str:
    """Return values as bars: ``highest`` is a full bar, values up to 0 are the lowest bar."""
    if highest <= 0:
        return BARS[0] * len(values)
    steps = len(BARS) - 1
    return "".join(BARS[round(max(value, 0.0) / highest * steps)] for value in values)


class SparklineHistory:
    """Recent values by key; keys that are not reported any more are dropped."""

    def __init__(self) -> None:
        self._values: defaultdict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=LENGTH)
        )

    def record(self, figures: Mapping[Hashable, float]) -> None:
        """Record the current values, and drop keys that are not among them."""
        for key in set(self._values) - set(figures):
            del self._values[key]
        for key, figure in figures.items():
            self._values[key].append(figure)

    def __bool__(self) -> bool:
        """True if some key has more than one value."""
        return any(len(values) > 1 for values in self._values.values())

    def columns(self, keys: Sequence[Hashable]) -> list[list[str]]:
        """Return a column of sparklines with one scale, which the header names.

        The column is a header and a cell for each key; there is none while no key has two values.
        """
        if not self:
            return []
        shown = [list(self._values.get(key, ())) for key in keys]
        highest = max((value for values in shown for value in values), default=0.0)
        lines = (sparkline(values, highest) if len(values) > 1 else "" for values in shown)
        return [[f"CPU(0 to {format_figure(highest, digits=2)} cores)", *lines]]


NO_HISTORY = SparklineHistory()
"""The history of a command that prints once: it stays empty."""


_RULE_WIDTH = 99


def node_table(
    views: Sequence[NodeRow], history: SparklineHistory = NO_HISTORY, *, modes: bool = False
) -> str:
    """Return nodes under Arena's header; ``modes`` adds the GPU mode.

    As in Arena, the column of unhealthy GPUs is shown only if there are any.
    """
    measured = any(view.gpus_used is not None for view in views)
    unhealthy = any(view.unhealthy_gpus for view in views)
    head = ["NAME", "IPADDRESS", "ROLE", "STATUS", "GPU(Total)", "GPU(Allocated)"]
    head += ["GPU(Mode)"] if modes else []
    head += ["UNHEALTHY"] if unhealthy else []
    head += ["CPU(Allocated)", "CPU(Used)", "MEMORY(Allocated)", "MEMORY(Used)", "PODS"]
    head += ["GPU(Used)"] if measured else []
    lately = history.columns([view.name for view in views])
    head += [column[0] for column in lately]
    rows = [
        [
            view.name,
            view.address,
            view.role,
            view.status,
            view.total.get(GPU, 0),
            view.allocated.get(GPU, 0),
            *([view.mode] if modes else []),
            *([view.unhealthy_gpus] if unhealthy else []),
            format_share(view, "cpu"),
            _cores(view),
            format_share(view, "memory"),
            _memory(view),
            format_share(view, "pods"),
            *([format_gpus(view.gpus_used)] if measured else []),
            *(column[index] for column in lately),
        ]
        for index, view in enumerate(views, 1)
    ]
    return format_table(head, rows)


_UNITS = {"cpu": (1000, ""), "memory": (2**30, "Gi"), "pods": (1, "")}


def format_share(view: NodeRow, resource: str) -> str:
    """Return allocated and total amount of a resource: ``1.5/4``."""
    unit, suffix = _UNITS[resource]
    allocated, total = view.allocated.get(resource, 0), view.total.get(resource, 0)
    shown = (plain_number(round(amount / unit, 1)) for amount in (allocated, total))
    return f"{'/'.join(shown)}{suffix}"


def _cores(view: NodeRow) -> str:
    return "" if view.cpu_used is None else f"{view.cpu_used:.2f}"


def _memory(view: NodeRow) -> str:
    return "" if view.memory_used is None else f"{view.memory_used / 2**30:.1f}Gi"


def format_used(view: NodeRow, resource: str) -> str:
    """Return the used amount of a resource as a suffix of its share; empty if unknown."""
    text = {"cpu": _cores, "memory": _memory}[resource](view)
    return f", {text} used" if text else ""


def format_gpus(gpus: float | None) -> str:
    """Return a sum of GPU utilization; empty if no exporter measures it."""
    return "" if gpus is None else f"{gpus:.2f}"


def gpu_totals(views: Sequence[NodeRow]) -> str:
    """Return the sum of all GPUs; empty without GPUs."""
    total = sum(view.total.get(GPU, 0) for view in views)
    allocated = sum(view.allocated.get(GPU, 0) for view in views)
    if not total:
        return ""
    share = f"{allocated}/{total} ({100 * allocated / total:.1f}%)"
    return f"{rule(_RULE_WIDTH)}\nAllocated/Total GPUs In Cluster:\n{share}"


def node_data(view: NodeRow) -> dict[str, Any]:
    return {
        "name": view.name,
        "ip": view.address,
        "role": view.role,
        "status": view.status,
        "totalGPUs": view.total.get(GPU, 0),
        "allocatedGPUs": view.allocated.get(GPU, 0),
        "totalMilliCPU": view.total.get("cpu", 0),
        "allocatedMilliCPU": view.allocated.get("cpu", 0),
        "totalMemoryBytes": view.total.get("memory", 0),
        "allocatedMemoryBytes": view.allocated.get("memory", 0),
        "usedCPU": view.cpu_used,
        "usedMemoryBytes": view.memory_used,
        "usedGPUs": view.gpus_used,
        "totalPods": view.total.get("pods", 0),
        "allocatedPods": view.allocated.get("pods", 0),
        "gpuMode": str(view.mode),
        "unhealthyGPUs": view.unhealthy_gpus,
    }


_MI = 2**20


def format_job_gpus(job: "Job", busy: "GpuUsage | None") -> str:
    """Return a row for each GPU of each replica, and the total of the job."""
    head = ["INSTANCE", "NODE", "GPU(Requested)", "GPU(IndexId)", "GPU(DutyCycle)"]
    head += ["GPU Memory(Used/Total)"]
    rows = [
        [replica.name, replica.node, replica.gpus, *cells]
        for replica in job.replicas
        if replica.gpus
        for cells in _replica_cells(pod_devices(busy, job.namespace, replica.name))
    ]
    total = f"  Allocated/Requested: {job.allocated_gpus}/{job.requested_gpus}"
    return f"{format_table(head, rows, indent='  ')}\n\n{total}" if rows else total


DEVICE_HEAD = ("GPU(DeviceIndex)", "GPU(DutyCycle)", "GPU_MEMORY(Used/Total)")


def device_cells(busy: "GpuUsage", namespace: str, pod: str) -> list[str]:
    """Return the GPUs of a pod in one row: indexes, duty cycles, total memory."""
    devices = pod_devices(busy, namespace, pod)
    sizes = [(device.memory_used_bytes, device.memory_total_bytes) for device in devices]
    used = [used for used, total in sizes if used is not None and total is not None]
    totals = [total for used, total in sizes if used is not None and total is not None]
    return [
        ",".join(device.index for device in devices),
        ",".join(filter(None, map(format_duty_cycle, devices))),
        _format_gpu_memory(sum(used), sum(totals)) if used else "",
    ]


def pod_devices(busy: "GpuUsage | None", namespace: str, pod: str) -> "Sequence[GpuDevice]":
    """Return the GPUs of a pod; none if no exporter measures them."""
    return busy.by_pod.get((namespace, pod), ()) if busy else ()


def format_duty_cycle(device: "GpuDevice") -> str:
    """Return the duty cycle of a GPU; empty if unknown."""
    return "" if device.utilization is None else f"{100 * device.utilization:.1f}%"


def _replica_cells(devices: "Sequence[GpuDevice]") -> list[tuple[str, str, str]]:
    lines = [
        (
            device.index,
            format_duty_cycle(device),
            _format_gpu_memory(device.memory_used_bytes, device.memory_total_bytes),
        )
        for device in devices
    ]
    return lines or [("", "", "")]


def _format_gpu_memory(used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return ""
    return f"{used / _MI:.1f}/{total / _MI:.1f}(MiB)"


def add_gpu_metrics(data: dict[str, Any], busy: "GpuUsage | None") -> dict[str, Any]:
    """Add the GPUs of each replica to a job's plain data, by index, under Arena's keys.

    Memory is in bytes. Without measurements the mapping is empty.
    """
    metrics = [
        _gpu_metrics(busy, data["namespace"], instance["name"]) for instance in data["instances"]
    ]
    measured = zip(data["instances"], metrics, strict=True)
    return data | {"instances": [entry | {"gpuMetrics": gpus} for entry, gpus in measured]}


def _gpu_metrics(busy: "GpuUsage | None", namespace: str, pod: str) -> dict[str, Any]:
    return {
        pod_device.index: {
            "gpuDutyCycle": None
            if pod_device.utilization is None
            else 100 * pod_device.utilization,
            "usedGPUMemory": pod_device.memory_used_bytes,
            "totalGPUMemory": pod_device.memory_total_bytes,
        }
        for pod_device in pod_devices(busy, namespace, pod)
    }
