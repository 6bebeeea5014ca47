"""Node lifecycle controller: taints lost nodes, and evicts pods that no longer tolerate a taint."""

import asyncio
import logging
from datetime import datetime
from typing import Any

import msgspec

from gangline.api.core.core import Lease, Node, Taint
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import LEASES, NODES, PODS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.controllers.context import (
    ControllerContext,
    current_time,
    evict_pod,
    mark_disrupted,
    patch_status,
)
from gangline.local.controllers.node_lifecycle.plan import (
    NO_EXECUTE,
    OUT_OF_SERVICE,
    Heartbeats,
    NodeUpdate,
    eviction_time,
    plan_node_update,
    unready_conditions,
)

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
TICK_S = 1.0
BY_NODE = "node"


class NodeLifecycleController:
    """Checks every node once a second, in memory; writes only changes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._recorder = context.recorder
        self._silence_s = context.settings.node_silence_s
        self._nodes = context.informers.informer(NODES)
        self._leases = context.informers.informer(LEASES, LEASE_NAMESPACE)
        self._pods = context.informers.informer(
            PODS, indexes={BY_NODE: lambda pod: [pod.spec.node_name]}
        )
        self._heartbeats = Heartbeats()
        self._missing_since: dict[str, float] = {}
        self._settled: dict[str, Node] = {}
        """Nodes that need nothing until they change or fall silent."""
        self._tainted_since: dict[str, dict[tuple[str, str], datetime]] = {}
        """When taints without a time were first seen, by node and by key and value."""
        self._leases.add_listener(self._observe_lease)

    async def run(self) -> None:
        while True:
            await self.check_nodes()
            await self._attempt(self._remove_orphans())
            await asyncio.sleep(TICK_S)

    async def check_nodes(self) -> None:
        """Check the nodes that have changed, or have fallen silent."""
        now, settled = _clock(), self._settled
        nodes = list(self._nodes.items())
        for node in nodes:
            name = node.metadata.name
            # A check takes 25 us: with thousands of nodes no request would be answered meanwhile.
            if settled.get(name) is node and self._heartbeats.age(name, now) <= self._silence_s:
                continue
            settled.pop(name, None)
            await self._attempt(self._check_node(node))
        if len(settled) > len(nodes):
            for name in settled.keys() - {node.metadata.name for node in nodes}:
                del settled[name]

    async def _attempt(self, work: Any) -> None:
        """Run one piece of work; a failed one is repeated at the next tick."""
        try:
            await work
        except (NotFound, Conflict):
            pass  # Another writer was faster.
        except ApiError as error:
            log.warning("node not reconciled: %s", error)

    def _observe_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None:
            self._heartbeats.observe(new.metadata.name, new, _clock())
        elif old is not None:
            self._settled.pop(old.metadata.name, None)

    async def _check_node(self, node: Node) -> None:
        name = node.metadata.name
        self._heartbeats.observe(name, self._leases.get(LEASE_NAMESPACE, name), _clock())
        silent = self._heartbeats.age(name, _clock()) > self._silence_s
        change = plan_node_update(node, silent=silent, now=current_time())
        if change.conditions is not None:
            status = {"conditions": msgspec.to_builtins(change.conditions)}
            await self._patch(node, {"status": status}, subresource="status")
            self._recorder.event(node, "Normal", "NodeNotReady", f"Node {name} is silent")
        elif change.taints is not None:
            await self._patch(node, {"spec": {"taints": msgspec.to_builtins(change.taints)}})
        if silent:
            for pod in self._pods.by_index(BY_NODE, name):
                await self._attempt(self._mark_not_ready(pod))
        if any(taint.effect == NO_EXECUTE for taint in node.spec.taints):
            await self._evict_intolerant_pods(node)
            return
        self._tainted_since.pop(name, None)
        if not silent and change == NodeUpdate():
            self._settled[name] = node

    async def _patch(self, node: Node, patch: dict[str, Any], subresource: str = "") -> None:
        # The resourceVersion guards against a kubelet that came back in this moment.
        patch = {"metadata": {"resourceVersion": node.metadata.resource_version}, **patch}
        await self._client.patch(NODES, node.metadata.name, patch, subresource=subresource)

    async def _mark_not_ready(self, pod: Pod) -> None:
        conditions = unready_conditions(pod, current_time())
        if conditions is not None:
            meta, status = pod.metadata, {"conditions": msgspec.to_builtins(conditions)}
            patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
            await patch_status(self._client, PODS, pod, patch)

    async def _evict_intolerant_pods(self, node: Node) -> None:
        """Delete the pods that have tolerated the node's taints for long enough."""
        abandoned = any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)
        taints = self._timed_taints(node)
        for pod in self._pods.by_index(BY_NODE, node.metadata.name):
            if pod.metadata.deletion_timestamp is not None:
                if abandoned:
                    await self._attempt(self._force(pod, "DeletionByPodGC", "the node is lost"))
                continue
            now = current_time()
            leaves = eviction_time(pod, taints, now)
            if leaves and leaves <= now and pod.status.phase not in TERMINAL_PHASES:
                message = f"node {node.metadata.name} has a taint that the pod no longer tolerates"
                await self._attempt(evict_pod(self._context, pod, "TaintManager", message))

    def _timed_taints(self, node: Node) -> list[Taint]:
        """Return the NoExecute taints of a node, each with its time: kubectl sets none."""
        now, name = current_time(), node.metadata.name
        before = self._tainted_since.get(name, {})
        timed = [
            taint
            if taint.time_added is not None
            else msgspec.structs.replace(
                taint, time_added=before.get((taint.key, taint.value), now)
            )
            for taint in node.spec.taints
            if taint.effect == NO_EXECUTE
        ]
        self._tainted_since[name] = {
            (taint.key, taint.value): taint.time_added or now for taint in timed
        }
        return timed

    async def _remove_orphans(self) -> None:
        """Delete pods whose Node object has been missing for a while: no kubelet can end them."""
        present = {node.metadata.name for node in self._nodes.items()}
        missing = self._pods.index_values(BY_NODE) - present - {""}
        self._missing_since = {name: self._missing_since.get(name, _clock()) for name in missing}
        for name, since in self._missing_since.items():
            if _clock() - since < self._silence_s:
                continue
            for pod in self._pods.by_index(BY_NODE, name):
                message = f"node {name} no longer exists"
                await self._attempt(self._force(pod, "DeletionByPodGC", message))

    async def _force(self, pod: Pod, reason: str, message: str) -> None:
        if pod.status.phase not in TERMINAL_PHASES:
            await mark_disrupted(self._client, pod, reason, message, phase="Failed")
        await self._client.delete(
            PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0, uid=pod.metadata.uid
        )


def _clock() -> float:
    return asyncio.get_running_loop().time()
