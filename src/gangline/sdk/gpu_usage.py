"""How busy GPUs are, from NVIDIA's DCGM exporter where a cluster runs it.

Its pods are found by their labels and asked through the API server, so that nothing but the right
to proxy to pods is needed. Each says of every GPU of its node how busy it is, and which pod has it.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from gangline.api.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client import Client
from gangline.kube.errors import ApiError
from gangline.kube.request import Request

PORT = 9400
BUSY = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of the last second in which something ran on the GPU."""
MEMORY_USED = "DCGM_FI_DEV_FB_USED"
"""MiB, as all memory."""
MEMORY_PARTS = (MEMORY_USED, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
"""What adds up to a GPU's memory."""
READ = (BUSY, *MEMORY_PARTS)
_Key = tuple[int, int, str, str]
SELECTORS = (
    "app in (nvidia-dcgm-exporter, dcgm-exporter)",
    "app.kubernetes.io/name=dcgm-exporter",
)
PATIENCE_S = 5.0
"""For all exporters together: a table must not wait for a node that is silent."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU of a node, or a slice of one."""

    index: str
    """Its number on the node, such as ``0``; of a slice ``0/3``."""
    namespace: str = ""
    pod: str = ""
    """Who has it; empty while nobody has."""
    busy: float | None = None
    """Which part of the time something runs on it; None where it is not told, as of slices."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """GPUs' worth of work: two GPUs that are half busy are one."""

    pods: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name."""
    nodes: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, tuple[GpuDevice, ...]] = field(default_factory=dict)
    """By node, in order of their numbers."""

    @cached_property
    def by_pod(self) -> Mapping[tuple[str, str], tuple[GpuDevice, ...]]:
        """The GPUs that pods have, by namespace and name."""
        found: defaultdict[tuple[str, str], list[GpuDevice]] = defaultdict(list)
        for each in chain.from_iterable(self.devices.values()):
            if each.pod:
                found[each.namespace, each.pod].append(each)
        return {pod: tuple(devices) for pod, devices in found.items()}


async def gpu_usage(client: Client) -> GpuUsage | None:
    """Ask all exporters; None where there are none, or none that may be asked."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            listings = await asyncio.gather(*(client.list(PODS, labels=s) for s in SELECTORS))
            found = {pod.metadata.uid: pod for listing in listings for pod in listing.items}
            running = [pod for pod in found.values() if pod.status.phase == "Running"]
            told = await asyncio.gather(*(_ask(client, pod) for pod in running))
    except (ApiError, TimeoutError):
        return None
    answers = [(pod.spec.node_name, text) for pod, text in zip(running, told, strict=True) if text]
    return read_exporters(answers) if answers else None


async def _ask(client: Client, pod: Pod) -> str:
    """What an exporter says; nothing from one that cannot be reached."""
    place = f"{pod.metadata.name}:{PORT}"
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{place}/proxy/metrics"
    try:
        return (await client.transport.send(Request("GET", path))).decode(errors="replace")
    except ApiError:
        return ""


def read_exporters(answers: Iterable[tuple[str, str]]) -> GpuUsage:
    """Add up what the exporters of nodes say.

    Args:
        answers: names of nodes, and the metrics of their exporters as text.
    """
    pods: defaultdict[tuple[str, str], float] = defaultdict(float)
    nodes: defaultdict[str, float] = defaultdict(float)
    devices: dict[str, tuple[GpuDevice, ...]] = {}
    for node, text in answers:
        found = read_devices(text)
        if found:
            devices[node] = (*devices.get(node, ()), *found)
        for device in found:
            if device.busy is None:
                continue
            nodes[node] += device.busy
            if device.pod:
                pods[device.namespace, device.pod] += device.busy
    return GpuUsage(dict(pods), dict(nodes), devices)


def read_devices(text: str) -> tuple[GpuDevice, ...]:
    """Return the GPUs that one exporter tells of, in order of their numbers; of junk none."""
    told: dict[_Key, dict[str, float]] = {}
    holders: dict[_Key, tuple[str, str]] = {}
    for labels, metric, value in _samples(text):
        key = _key(labels)
        told.setdefault(key, {})[metric] = value
        pod = labels.get("exported_pod") or labels.get("pod", "")
        namespace = labels.get("exported_namespace") or labels.get("namespace", "")
        holders[key] = (namespace, pod) if pod else ("", "")
    return tuple(_device(key, told[key], *holders[key]) for key in sorted(told))


def _samples(text: str) -> list[tuple[Mapping[str, str], str, float]]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    # A few metrics of some forty are read: the rest need not be understood.
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


def _key(labels: Mapping[str, str]) -> _Key:
    """What tells a GPU from others: a slice has a number of its own, a shared one is told often."""
    return (
        _number(labels.get("gpu", "")),
        _number(labels.get("GPU_I_ID", "")),
        labels.get("UUID", ""),
        labels.get("vgpu", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else -1


def _device(key: _Key, told: Mapping[str, float], namespace: str, pod: str) -> GpuDevice:
    gpu, part = (str(number) if number >= 0 else "" for number in key[:2])
    memory = [told[metric] for metric in MEMORY_PARTS if metric in told]
    return GpuDevice(
        index=f"{gpu}/{part}" if part else gpu,
        namespace=namespace,
        pod=pod,
        busy=told[BUSY] / 100 if BUSY in told else None,
        memory_used_bytes=_bytes(told[MEMORY_USED]) if MEMORY_USED in told else None,
        memory_total_bytes=_bytes(sum(memory)) if len(memory) > 1 else None,
    )


def _bytes(mebibytes: float) -> int:
    return round(mebibytes * 2**20)
