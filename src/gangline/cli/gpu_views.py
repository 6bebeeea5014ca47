"""The GPUs of a job's replicas one by one, as Arena shows them where something measures them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gangline.cli.output import table

if TYPE_CHECKING:
    from gangline.sdk.gpu_usage import GpuDevice, GpuUsage
    from gangline.sdk.jobs import Job

_MI = 2**20


def gpu_block(job: "Job", busy: "GpuUsage | None") -> str:
    """Return a row for each GPU of each replica, and how many GPUs the job has in all."""
    head = ["INSTANCE", "NODE", "GPU(Requested)", "GPU(IndexId)", "GPU(DutyCycle)"]
    head += ["GPU Memory(Used/Total)"]
    rows = [
        [replica.name, replica.node, replica.gpus, *cells]
        for replica in job.replicas
        if replica.gpus
        for cells in _cells(devices_of(busy, job.namespace, replica.name))
    ]
    total = f"  Allocated/Requested: {job.allocated_gpus}/{job.requested_gpus}"
    return f"{table(head, rows, indent='  ')}\n\n{total}" if rows else total


def devices_of(busy: "GpuUsage | None", namespace: str, pod: str) -> "list[GpuDevice]":
    """Return the GPUs that a pod has; none where nothing measures them."""
    devices = [each for found in busy.devices.values() for each in found] if busy else []
    return [each for each in devices if (each.namespace, each.pod) == (namespace, pod)]


def _cells(devices: "Sequence[GpuDevice]") -> list[tuple[str, str, str]]:
    found = [
        (
            each.index,
            "" if each.busy is None else f"{100 * each.busy:.1f}%",
            _memory(each.memory_used_bytes, each.memory_total_bytes),
        )
        for each in devices
    ]
    return found or [("", "", "")]


def _memory(used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return ""
    return f"{used / _MI:.1f}/{total / _MI:.1f}(MiB)"


def gpu_metrics(busy: "GpuUsage | None", namespace: str, pod: str) -> dict[str, Any]:
    """Return the GPUs of a pod by their numbers, under Arena's keys; memory in bytes."""
    return {
        each.index: {
            "gpuDutyCycle": None if each.busy is None else 100 * each.busy,
            "usedGPUMemory": each.memory_used_bytes,
            "totalGPUMemory": each.memory_total_bytes,
        }
        for each in devices_of(busy, namespace, pod)
    }
