"""Current usage of pods, nodes and GPUs.

CPU and memory come from the cluster's metrics API, GPU utilization from NVIDIA's DCGM exporter. The
pods of the exporter are found by their labels and read through the API server's pod proxy, so only
the right to proxy to pods is needed.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.kube.http.request import Request

_PATH = "/apis/metrics.k8s.io/v1beta1"


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Used processors, memory and GPUs."""

    cpu: float = 0.0
    """Cores."""
    memory: float = 0.0
    """Bytes."""
    gpus: float | None = None
    """Sum of GPU utilization; None if no exporter measures it."""

    def __add__(self, other: "ResourceUsage") -> "ResourceUsage":
        measured = [side.gpus for side in (self, other) if side.gpus is not None]
        gpus = sum(measured) if measured else None
        return ResourceUsage(self.cpu + other.cpu, self.memory + other.memory, gpus)


async def pod_usage(
    client: ApiClient, namespace: str | None
) -> Mapping[tuple[str, str], ResourceUsage]:
    """Return usage by namespace and name of pods; empty if the cluster has no metrics API."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return await _read(client, f"{_PATH}{where}/pods")


async def node_usage(client: ApiClient) -> Mapping[tuple[str, str], ResourceUsage]:
    """Return usage of nodes by name, with an empty namespace in the key."""
    return await _read(client, f"{_PATH}/nodes")


async def _read(client: ApiClient, path: str) -> Mapping[tuple[str, str], ResourceUsage]:
    try:
        listing = await client.request_json("GET", path)
    except ApiError:
        return {}
    return {
        (item["metadata"].get("namespace", ""), item["metadata"]["name"]): parse_usage(item)
        for item in listing.get("items") or ()  # Go writes null for an empty list
    }


def parse_usage(item: Mapping[str, Any]) -> ResourceUsage:
    """Sum up the containers of a pod, or convert the usage of a node."""
    parts = [part["usage"] for part in item.get("containers", [])] or [item.get("usage", {})]
    return ResourceUsage(
        *(sum(_amount(part.get(name, "0")) for part in parts) for name in ("cpu", "memory"))
    )


def _amount(text: str) -> float:
    try:
        return parse_quantity(text).nano / 1e9
    except QuantityError:
        return 0.0


PORT = 9400
UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of the last second in which a kernel ran on the GPU."""
MEMORY_USED = "DCGM_FI_DEV_FB_USED"
"""MiB, as all memory metrics."""
MEMORY_PARTS = (MEMORY_USED, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
"""Metrics whose sum is the memory of a GPU."""
READ = (UTILIZATION, *MEMORY_PARTS)
_DeviceKey = tuple[int, int, str, str]
SELECTORS = (
    "app in (nvidia-dcgm-exporter, dcgm-exporter)",
    "app.kubernetes.io/name=dcgm-exporter",
)
EXPORTER_TIMEOUT_S = 5.0
"""Timeout for all exporters together: a table must not wait for an unresponsive node."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU of a node, or a MIG slice of one."""

    index: str
    """Index on the node, such as ``0``; ``0/3`` for a slice."""
    namespace: str = ""
    pod: str = ""
    """The pod that has the GPU; empty for a free GPU."""
    utilization: float | None = None
    """Fraction of time in which a kernel runs; None if not reported, as for slices."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """Utilization summed over GPUs: two GPUs that are half busy count as one."""

    pods: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name."""
    nodes: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, tuple[GpuDevice, ...]] = field(default_factory=dict)
    """By node, in order of their indexes."""

    @cached_property
    def by_pod(self) -> Mapping[tuple[str, str], tuple[GpuDevice, ...]]:
        """GPUs by namespace and name of their pod."""
        by_pod: defaultdict[tuple[str, str], list[GpuDevice]] = defaultdict(list)
        for device in chain.from_iterable(self.devices.values()):
            if device.pod:
                by_pod[device.namespace, device.pod].append(device)
        return {pod: tuple(devices) for pod, devices in by_pod.items()}


async def gpu_usage(client: ApiClient) -> GpuUsage | None:
    """Read all exporters; None if there are none, or none is readable."""
    try:
        async with asyncio.timeout(EXPORTER_TIMEOUT_S):
            listings = await asyncio.gather(*(client.list(PODS, labels=s) for s in SELECTORS))
            pods = {pod.metadata.uid: pod for listing in listings for pod in listing.items}
            running = [pod for pod in pods.values() if pod.status.phase == "Running"]
            texts = await asyncio.gather(*(_scrape(client, pod) for pod in running))
    except (ApiError, TimeoutError):
        return None
    answers = [(pod.spec.node_name, text) for pod, text in zip(running, texts, strict=True) if text]
    return sum_exporters(answers) if answers else None


async def _scrape(client: ApiClient, pod: Pod) -> str:
    """Return the metrics of an exporter; empty if it cannot be reached."""
    address = f"{pod.metadata.name}:{PORT}"
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{address}/proxy/metrics"
    try:
        return (await client.transport.send(Request("GET", path))).decode(errors="replace")
    except ApiError:
        return ""


def sum_exporters(answers: Iterable[tuple[str, str]]) -> GpuUsage:
    """Sum up the metrics of all exporters.

    Args:
        answers: names of nodes, and the metrics of their exporters as text.
    """
    pods: defaultdict[tuple[str, str], float] = defaultdict(float)
    nodes: defaultdict[str, float] = defaultdict(float)
    devices: dict[str, tuple[GpuDevice, ...]] = {}
    for node, text in answers:
        parsed = parse_exporter(text)
        if parsed:
            devices[node] = (*devices.get(node, ()), *parsed)
        for device in parsed:
            if device.utilization is None:
                continue
            nodes[node] += device.utilization
            if device.pod:
                pods[device.namespace, device.pod] += device.utilization
    return GpuUsage(dict(pods), dict(nodes), devices)


def parse_exporter(text: str) -> tuple[GpuDevice, ...]:
    """Return the GPUs of one exporter in order of their indexes; none for invalid text."""
    metrics: dict[_DeviceKey, dict[str, float]] = {}
    holders: dict[_DeviceKey, tuple[str, str]] = {}
    for labels, metric, value in _samples(text):
        key = _key(labels)
        metrics.setdefault(key, {})[metric] = value
        pod = labels.get("exported_pod") or labels.get("pod", "")
        namespace = labels.get("exported_namespace") or labels.get("namespace", "")
        holders[key] = (namespace, pod) if pod else ("", "")
    return tuple(_device(key, metrics[key], *holders[key]) for key in sorted(metrics))


def _samples(text: str) -> list[tuple[Mapping[str, str], str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    # Only four of about forty metrics are parsed; the others may have any form.
    lines = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(READ))
    try:
        families = list(text_string_to_metric_families(lines))
    except ValueError:
        return []
    return [
        (sample.labels, sample.name, sample.value)
        for family in families
        for sample in family.samples
        if sample.name in READ and math.isfinite(sample.value)
    ]


def _key(labels: Mapping[str, str]) -> _DeviceKey:
    """Return the identity of a GPU: slices have their own index; a shared GPU is reported several
    times.
    """
    return (
        _number(labels.get("gpu", "")),
        _number(labels.get("GPU_I_ID", "")),
        labels.get("UUID", ""),
        labels.get("vgpu", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else -1


def _device(key: _DeviceKey, metrics: Mapping[str, float], namespace: str, pod: str) -> GpuDevice:
    gpu, part = (str(number) if number >= 0 else "" for number in key[:2])
    memory = [metrics[name] for name in MEMORY_PARTS if name in metrics]
    return GpuDevice(
        index=f"{gpu}/{part}" if part else gpu,
        namespace=namespace,
        pod=pod,
        utilization=metrics[UTILIZATION] / 100 if UTILIZATION in metrics else None,
        memory_used_bytes=_bytes(metrics[MEMORY_USED]) if MEMORY_USED in metrics else None,
        memory_total_bytes=_bytes(sum(memory)) if len(memory) > 1 else None,
    )


def _bytes(mebibytes: float) -> int:
    return round(mebibytes * 2**20)
