"""How busy GPUs are, from NVIDIA's DCGM exporter where a cluster runs it.

Its pods are found by their labels and asked through the API server, so that nothing but the right
to proxy to pods is needed. Each says of every GPU of its node how busy it is, and which pod has it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gangline.api.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client import Client
from gangline.kube.errors import ApiError
from gangline.kube.request import Request

PORT = 9400
BUSY = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of the last second in which something ran on the GPU."""
SELECTORS = (
    "app in (nvidia-dcgm-exporter, dcgm-exporter)",
    "app.kubernetes.io/name=dcgm-exporter",
)
PATIENCE_S = 5.0
"""For all exporters together: a table must not wait for a node that is silent."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """GPUs' worth of work: two GPUs that are half busy are one."""

    pods: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name."""
    nodes: Mapping[str, float] = field(default_factory=dict)


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
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    pods: defaultdict[tuple[str, str], float] = defaultdict(float)
    nodes: defaultdict[str, float] = defaultdict(float)
    for node, text in answers:
        # One metric of some forty is read: the rest need not be understood.
        lines = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(BUSY))
        try:
            families = list(text_string_to_metric_families(lines))
        except ValueError:
            continue
        for sample in (each for family in families for each in family.samples if each.name == BUSY):
            labels, busy = sample.labels, sample.value / 100
            nodes[node] += busy
            name = labels.get("exported_pod") or labels.get("pod", "")
            namespace = labels.get("exported_namespace") or labels.get("namespace", "")
            if name:
                pods[namespace, name] += busy
    return GpuUsage(dict(pods), dict(nodes))
