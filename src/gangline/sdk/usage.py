"""Current usage of pods and nodes, from the cluster's metrics API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.quantity import QuantityError, parse_quantity
from gangline.kube.client import ApiClient
from gangline.kube.errors import ApiError

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
        known = [each.gpus for each in (self, other) if each.gpus is not None]
        gpus = sum(known) if known else None
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
        for item in listing.get("items", [])
    }


def parse_usage(item: Mapping[str, Any]) -> ResourceUsage:
    """Sum up the containers of a pod, or convert the usage of a node."""
    parts = [part["usage"] for part in item.get("containers", [])] or [item.get("usage", {})]
    return sum((_usage(part) for part in parts), ResourceUsage())


def _usage(amounts: Mapping[str, str]) -> ResourceUsage:
    return ResourceUsage(_amount(amounts.get("cpu", "0")), _amount(amounts.get("memory", "0")))


def _amount(text: str) -> float:
    try:
        return parse_quantity(text).nano / 1e9
    except QuantityError:
        return 0.0
