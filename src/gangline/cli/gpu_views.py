"""GPUs of the replicas of a job, one by one, in Arena's form, if an exporter measures them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gangline.cli.output import format_table

if TYPE_CHECKING:
    from gangline.sdk.gpu_usage import GpuDevice, GpuUsage
    from gangline.sdk.jobs import Job

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
    sizes = [(each.memory_used_bytes, each.memory_total_bytes) for each in devices]
    used = [used for used, total in sizes if used is not None and total is not None]
    totals = [total for used, total in sizes if used is not None and total is not None]
    return [
        ",".join(each.index for each in devices),
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
    found = [
        (
            each.index,
            format_duty_cycle(each),
            _format_gpu_memory(each.memory_used_bytes, each.memory_total_bytes),
        )
        for each in devices
    ]
    return found or [("", "", "")]


def _format_gpu_memory(used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return ""
    return f"{used / _MI:.1f}/{total / _MI:.1f}(MiB)"


def add_gpu_metrics(data: dict[str, Any], busy: "GpuUsage | None") -> dict[str, Any]:
    """Add the GPUs of each replica to a job's plain data, by index, under Arena's keys.

    Memory is in bytes. Without measurements the mapping is empty.
    """
    metrics = [_gpu_metrics(busy, data["namespace"], each["name"]) for each in data["instances"]]
    found = zip(data["instances"], metrics, strict=True)
    return data | {"instances": [each | {"gpuMetrics": gpus} for each, gpus in found]}


def _gpu_metrics(busy: "GpuUsage | None", namespace: str, pod: str) -> dict[str, Any]:
    return {
        each.index: {
            "gpuDutyCycle": None if each.utilization is None else 100 * each.utilization,
            "usedGPUMemory": each.memory_used_bytes,
            "totalGPUMemory": each.memory_total_bytes,
        }
        for each in pod_devices(busy, namespace, pod)
    }
