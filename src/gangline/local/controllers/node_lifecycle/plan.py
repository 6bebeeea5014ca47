"""Node health: which nodes are lost, and when pods must leave their nodes.

A node is alive while its lease changes. The time since the last change is measured with the
monotonic clock of this process. The times in a lease come from another machine's clock and are
never compared.

A silent node gets Unknown conditions, and taints keep new pods away. A pod is evicted after it has
tolerated the NoExecute taint for its ``tolerationSeconds``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from gangline.api.core.affinity import tolerates
from gangline.api.core.core import Lease, Node, Taint
from gangline.api.core.pod import Pod
from gangline.api.meta.objects import Condition
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
