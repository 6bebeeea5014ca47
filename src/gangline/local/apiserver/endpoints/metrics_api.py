"""metrics.k8s.io: current usage of nodes and pods, from their kubelets, for ``kubectl top``."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import aiohttp

from gangline.local.apiserver.core.errors import not_found
from gangline.local.apiserver.core.negotiation import encode_json, read_json
from gangline.local.apiserver.core.prepare import format_timestamp
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import KubeletAddress, KubeletProxyClient
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ObjectRevision
from gangline.local.apiserver.verbs import read
from gangline.local.apiserver.verbs.read import ListPage
from gangline.local.apiserver.verbs.rest import ApiResponse
from gangline.local.apiserver.watch import compile_selection

GROUP = "metrics.k8s.io"
RATE_WINDOW_S = 1.1
"""A kubelet computes rates between two requests, so the first sample of a kubelet takes two."""
KUBELET_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class MetricsApi:
    """Handles requests for metrics.k8s.io."""

    def __init__(self, store: ObjectStore, link: KubeletProxyClient) -> None:
        self._store = store
        self._link = link
        self._sampled_before: set[str] = set()

    async def nodes(self, request: ApiRequest) -> ApiResponse:
        """Return the usage of nodes."""
        measured = {
            node["nodeName"]: {"usage": _usage(node)}
            for summary in await self._summaries()
            for node in summary.get("nodes", ())
        }
        return self._render(request, "nodes.", measured)

    async def pods(self, request: ApiRequest) -> ApiResponse:
        """Return the usage of pods, by container."""
        measured = {
            f"{pod['podRef']['namespace']}/{pod['podRef']['name']}": {
                "containers": [
                    {"name": part["name"], "usage": _usage(part)} for part in pod["containers"]
                ]
            }
            for summary in await self._summaries()
            for pod in summary.get("pods", ())
            if pod["containers"]
        }
        return self._render(request, "pods.", measured)

    async def _summaries(self) -> list[Json]:
        """Request the usage once from each kubelet server, which may serve several nodes."""
        by_server: dict[str, list[KubeletAddress]] = {}
        for address in self._link.kubelet_addresses():
            by_server.setdefault(address.base, []).append(address)
        if by_server.keys() - self._sampled_before:
            await asyncio.gather(*map(self._summary, by_server.values()))
            self._sampled_before |= by_server.keys()
            await asyncio.sleep(RATE_WINDOW_S)
        return await asyncio.gather(*map(self._summary, by_server.values()))

    async def _summary(self, nodes: list[KubeletAddress]) -> Json:
        """The usage that a server reports about these nodes; about others it is not trusted."""
        for node in nodes:
            try:
                async with await self._link.get(
                    node.endpoint("stats", "summary"), limits=KUBELET_TIMEOUT
                ) as answer:
                    summary: Any = read_json(await answer.read()) if answer.status == 200 else {}
            except (aiohttp.ClientError, TimeoutError):
                continue  # the server is away, or it does not run this node
            with contextlib.suppress(KeyError, TypeError, AttributeError):  # not a summary
                return self._limit_to(summary, {sample.node for sample in nodes})
        return {}

    def _limit_to(self, summary: Json, nodes: set[str]) -> Json:
        pods = self._store.cache("pods.").records
        listed = summary.get("nodes") or [summary.get("node") or {}]
        return {
            "nodes": [node for node in listed if node.get("nodeName") in nodes],
            "pods": [
                pod
                for pod in summary.get("pods") or ()
                if (record := pods.get(f"{pod['podRef']['namespace']}/{pod['podRef']['name']}"))
                and record.fields.get("spec.nodeName") in nodes
            ],
        }

    def _render(self, request: ApiRequest, topic: str, measured: dict[str, Json]) -> ApiResponse:
        """Return what was measured of the requested objects, by their keys."""
        cache, chosen = self._store.cache(topic), compile_selection(request)
        records = [cache.records[key] for key in cache.keys(request.namespace) if key in measured]
        objects = [
            _measurement(request.kind, record, measured[record.key])
            for record in records
            if chosen.matches(record)
        ]
        if request.name:
            if not objects:
                raise not_found(request.kind.plural, GROUP, request.name)
            return ApiResponse(*read.render_object(request, encode_json(objects[0])))
        listed = [ObjectRevision("", 0, encode_json(obj), {}, {}) for obj in objects]
        return ApiResponse(*read.render_list(request, ListPage(listed, self._store.revision)))


def _measurement(kind: ServedKind, record: ObjectRevision, measured: Json) -> Json:
    namespace, _, name = record.key.rpartition("/")
    now = format_timestamp(datetime.now(UTC))
    meta: Json = {"name": name, "creationTimestamp": now}
    if namespace:
        meta["namespace"] = namespace
    if record.labels:
        meta["labels"] = record.labels
    return {
        "kind": kind.kind,
        "apiVersion": kind.api_version,
        "metadata": meta,
        "timestamp": now,
        "window": "15s",
        **measured,
    }


def _usage(part: Json) -> dict[str, str]:
    cpu = (part.get("cpu") or {}).get("usageNanoCores") or 0
    memory = (part.get("memory") or {}).get("workingSetBytes") or 0
    return {"cpu": f"{cpu}n", "memory": f"{memory // 1024}Ki"}
