"""Node lifecycle: detects lost nodes by their leases, taints them, and evicts their pods.

A node is alive while its lease changes. The time since the last change is measured with the
monotonic clock of this process. The times in a lease come from another machine's clock and are
never compared.

A silent node gets Unknown conditions, and taints keep new pods away. A pod is evicted after it has
tolerated the NoExecute taint for its ``tolerationSeconds``. `plan_node_update` and `eviction_time`
(pure) decide that.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from gangline.api.core.affinity import tolerates
from gangline.api.core.core import Lease, Node, Taint
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.objects import Condition
from gangline.api.resources import LEASES, NODES, PODS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.controllers.context import (
    ControllerContext,
    QueueLoop,
    current_time,
    evict_pod,
    mark_disrupted,
    patch_status,
)
from gangline.local.limits import MAX_PERIOD_S

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
MANAGED_TAINTS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE})
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
NODE_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
SILENT_MESSAGE = "Kubelet stopped posting node status."


class Heartbeats:
    """The time at which each node's lease was last seen to change, by the local monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}

    def observe(self, node: str, lease: Lease | None, now: float) -> None:
        """Record a node's lease as seen at ``now`` (monotonic seconds)."""
        mark = str(lease.spec.renew_time) if lease is not None else ""
        last = self._seen.get(node)
        if last is None or last[0] != mark:
            self._seen[node] = (mark, now)

    def age(self, node: str, now: float) -> float:
        """Seconds since the lease last changed; 0 for a node that was never observed."""
        return now - self._seen[node][1] if node in self._seen else 0.0


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """Conditions and taints to write to a node; None leaves them unchanged."""

    conditions: list[Condition] | None = None
    taints: list[Taint] | None = None


def plan_node_update(node: Node, *, silent: bool, now: datetime) -> NodeUpdate:
    """Return the changes that bring a node's conditions and taints up to date."""
    conditions = (
        _unknown_conditions(node.status.conditions, now) if silent else node.status.conditions
    )
    taints = _taints(node, conditions, now)
    return NodeUpdate(
        conditions=conditions if conditions != node.status.conditions else None,
        taints=taints if _taint_keys(taints) != _taint_keys(node.spec.taints) else None,
    )


def _unknown_conditions(conditions: Sequence[Condition], now: datetime) -> list[Condition]:
    by_type = {condition.type: condition for condition in conditions}
    for kind in NODE_CONDITIONS:
        old = by_type.get(kind, Condition(type=kind))
        if old.status != "Unknown":
            by_type[kind] = msgspec.structs.replace(
                old,
                status="Unknown",
                reason="NodeStatusUnknown",
                message=SILENT_MESSAGE,
                last_transition_time=now,
            )
    return list(by_type.values())


def _taints(node: Node, conditions: Iterable[Condition], now: datetime) -> list[Taint]:
    ready = next((condition.status for condition in conditions if condition.type == "Ready"), "")
    desired: list[tuple[str, str]] = []
    if ready == "Unknown":
        desired += [(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]
    elif ready == "False":
        desired += [(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]
    if node.spec.unschedulable:
        desired.append((UNSCHEDULABLE, NO_SCHEDULE))
    present = {(taint.key, taint.effect): taint for taint in node.spec.taints}
    others = [taint for taint in node.spec.taints if taint.key not in MANAGED_TAINTS]
    return others + [
        present.get((key, effect)) or Taint(key=key, effect=effect, time_added=now)
        for key, effect in desired
    ]


def _taint_keys(taints: Iterable[Taint]) -> set[tuple[str, str, str]]:
    return {(taint.key, taint.value, taint.effect) for taint in taints}


def eviction_time(pod: Pod, taints: Iterable[Taint], now: datetime) -> datetime | None:
    """Return the time at which a pod must leave a node with these taints; None if it may stay.

    The result is ``now`` if the pod does not tolerate a NoExecute taint at all.
    """
    leaving: list[datetime] = []
    for taint in taints:
        if taint.effect != NO_EXECUTE:
            continue
        tolerating = [one for one in pod.spec.tolerations if tolerates(one, taint)]
        if not tolerating:
            return now
        limits = [
            one.toleration_seconds for one in tolerating if one.toleration_seconds is not None
        ]
        if limits:
            stays_s = min(max(0, min(limits)), MAX_PERIOD_S)
            leaving.append((taint.time_added or now) + timedelta(seconds=stays_s))
    return min(leaving, default=None)


def unready_conditions(pod: Pod, now: datetime) -> list[Condition] | None:
    """The conditions of a pod on a silent node with Ready set to false; None if they are so
    already.
    """
    changed = [
        msgspec.structs.replace(condition, status="False", last_transition_time=now)
        if condition.type == "Ready" and condition.status == "True"
        else condition
        for condition in pod.status.conditions
    ]
    return changed if changed != pod.status.conditions else None


log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
TICK_S = 1.0
BY_NODE = "node"


class NodeLifecycleController(QueueLoop):
    """Checks every node once a second, in memory; writes only changes."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._context = context
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
