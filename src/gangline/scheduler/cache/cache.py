"""The scheduler cache: nodes as arrays, pods by node and by gang, groups, queues and their usage.

The cache is updated incrementally: each change costs only what it concerns. A pod whose binding the
API server has not confirmed yet is *assumed*: its request counts on the chosen node, so that the
next cycle does not allocate the same resources again.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS, NodeTable
from gangline.scheduler.plugins.devices import DeviceClaimInfo, DeviceState
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.plugins.volumes import StorageState
from gangline.scheduler.types import (
    DisruptionBudgetInfo,
    GangId,
    GroupKey,
    NodeInfo,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodShape,
    QueueInfo,
    QuotaInfo,
    RefusedBinding,
    Request,
    Reservation,
    is_kubernetes_group,
)

K = TypeVar("K", bound=str)
_NO_VOLUMES: Mapping[str, str] = {}
MAX_CHARGED = 1000
"""Charged gangs above which cached results are dropped; nothing may ask for them again."""
NO_QUEUE = ""
"""The queue of gangs whose group does not exist."""


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that a gang has lost, with the node it ran on."""

    pod: PodInfo
    at: float
    """Time of the loss, in seconds on the clock of the cache."""


@dataclass(slots=True)
class DerivedGangs:
    """What cycles have derived from gangs and use again; the cache drops what has changed."""

    pending: dict[GroupKey, object] = field(default_factory=dict)
    """Results that depend on a group and its members alone."""
    running: dict[GangId, object] = field(default_factory=dict)
    """Results that depend on a group, its running members and the rows of nodes alone, by the key
    of ``placed_members``.
    """

    def drop(self, group: GroupKey) -> None:
        self.pending.pop(group, None)
        self.running.pop(GangId(group), None)


class SchedulerCache:
    """What is known now. Only informers, the loop and tests change it; a cycle reads it."""

    def __init__(self, weights: ScoreWeights = DEFAULT_WEIGHTS) -> None:  # noqa: PLR0915 - one table each
        self.nodes = NodeTable(weights)
        self.overreporting_nodes: set[NodeName] = set()
        """Nodes whose allocatable amounts exceed their capacity."""
        self.pods: dict[PodKey, PodInfo] = {}
        self.pending: dict[PodKey, PodInfo] = {}
        """Pods that this scheduler has to place."""
        self.pending_shapes: Counter[PodShape] = Counter()
        self.pending_single_pods: dict[PodKey, PodInfo] = {}
        """Pending pods without a group."""
        self.pending_members: dict[GroupKey, dict[PodKey, PodInfo]] = defaultdict(dict)
        """Pending pods of gangs, by group."""
        self.usage = UsageLedger(DEFAULT_QUEUE)
        """Usage of gangs and queues."""
        self.pending_usage = UsageLedger(DEFAULT_QUEUE)
        """Requests of pending pods, by gang and queue."""
        self.budgets: dict[str, DisruptionBudgetInfo] = {}
        self.quotas: dict[str, dict[str, QuotaInfo]] = {}
        """Quotas by namespace and name."""
        self.reservations: dict[str, Reservation] = {}
        """Reservations by the name of their gang."""
        self.storage = StorageState()
        self.nodes.storage = self.storage
        self.devices = DeviceState()
        self.nodes.devices = self.devices
        self.counted_resources: set[str] = set()
        """Counted resources (free volumes, attachments) that are current on all nodes. The empty
        name is in the set once those of all pending pods are.
        """
        self.derived = DerivedGangs()
        self.queue_structure: object = None
        """What cycles have derived from the queues alone; they check whether it is current."""
        self.members: dict[GroupKey, dict[PodKey, PodInfo]] = defaultdict(dict)
        self.groups: dict[GroupKey, PodGroupInfo] = {}
        self.restarting_groups: set[GroupKey] = set()
        """Groups that announce previous nodes."""
        self.unadmitted: set[GroupKey] = set()
        """Groups whose pods must not be created yet, and that state what these request."""
        self.admitted_at: dict[GroupKey, float] = {}
        """Groups that cycles have admitted, with the time in seconds since the epoch."""
        self.joining_groups: set[GroupKey] = set()
        """Groups that some pods join when they run."""
        self.queues: dict[str, QueueInfo] = {}
        self.class_protection: dict[str, float] = {}
        """Protected run time in seconds by PriorityClass; the empty name is the global default."""
        self.lost_members: dict[GroupKey, list[LostMember]] = defaultdict(list)
        """Members that left their nodes without success, by gang."""
        self.former_members: dict[GroupKey, dict[PodKey, PodInfo]] = defaultdict(dict)
        """Deleted members of existing groups that had a node, the latest of each name. A recreated
        pod of the same name is expected to request the same.
        """
        self._implied_groups: set[GroupKey] = set()
        """Groups without a PodGroup, which annotations of their pods describe."""
        self.placed_members: dict[GangId, dict[PodKey, PodInfo]] = defaultdict(dict)
        """Pods that hold resources, by their gang."""
        self._on_node: dict[NodeName, dict[PodKey, PodInfo]] = defaultdict(dict)
        self.nodes.pods_by_node = self._on_node
        self._assumed: dict[PodKey, NodeName] = {}
        self.refused_bindings: dict[PodKey, RefusedBinding] = {}
        self._lowest_single_priority = 2**31
        self._group_priorities: Counter[int] = Counter()
        """Number of groups of each priority."""
        self._evicted: dict[PodKey, str] = {}
        """Pods being evicted, with their uids, until the API server shows the deletion."""

    def set_node(self, node: NodeInfo) -> None:
        """Add or change a node. Pods that were seen on it before it was known are counted."""
        exists = node.name in self.nodes.rows
        self.counted_resources.clear()
        self.nodes.set(self.devices.with_amounts(node))
        (
            self.overreporting_nodes.add
            if node.overreported_resources
            else self.overreporting_nodes.discard
        )(node.name)
        if not exists:
            self.derived.running.clear()
            for pod in self._on_node.get(node.name, {}).values():
                self.nodes.charge_pod(pod)

    def remove_node(self, name: NodeName) -> None:
        """Remove a node. Its pods stay known in case it comes back."""
        self.nodes.remove(name)
        self.derived.running.clear()
        self.overreporting_nodes.discard(name)

    def set_pod(self, pod: PodInfo) -> None:
        """Add or change a pod. A pod of the same name with another uid replaces the old one."""
        former = self.pods.get(pod.key)
        assumed = self._assumed.get(pod.key)
        if former is not None and assumed is not None:
            if former.uid == pod.uid and pod.node is None:
                # The event may be older than the binding. The assumption holds until the API
                # server shows a node.
                pod = replace(pod, node=assumed)
            else:
                del self._assumed[pod.key]
        if self._evicted.get(pod.key) == pod.uid:
            pod = replace(pod, is_terminating=True)
        else:
            self._evicted.pop(pod.key, None)
        if pod.device_claims:
            pod = self.devices.charge(pod)
        if former is None or former.uid != pod.uid:
            self.nodes.request_mix.observe(pod.shape, pod.created)
        if former == pod:
            # The API server confirms the assumption, or the change does not affect any cycle.
            return
        if former is not None:
            self._remove(former)
        self._add(pod)
        self._drop_unused_assumptions(former)
        self._recharge_claims(pod)
        if former is not None and former.device_claims != pod.device_claims:
            self._recharge_claims(former)

    def remove_pod(self, key: PodKey) -> None:
        self._assumed.pop(key, None)
        self.refused_bindings.pop(key, None)
        self._evicted.pop(key, None)
        former = self.pods.get(key)
        if former is not None:
            self._remove(former)
            self._drop_unused_assumptions(former)
            self._recharge_claims(former)
            if former.group is not None and former.group in self.groups and former.node is not None:
                self.former_members[former.group][key] = former
            if former.group is not None and former.implied_group is not None:
                self._update_implied_group(former.group)

    def set_group(self, group: PodGroupInfo) -> None:
        self._implied_groups.discard(group.key)
        self._set_group(group)

    def _set_group(self, group: PodGroupInfo) -> None:
        if group.has_queue_of_pods:
            first = first_described(self.members.get(group.key, {}).values())
            queue = first.implied_group.queue if first and first.implied_group else DEFAULT_QUEUE
            group = dataclasses.replace(group, queue=queue)
        self._count_priority(self.groups.get(group.key), -1)
        self.groups[group.key] = group
        self._count_priority(group, 1)
        self.derived.drop(group.key)
        self.usage.assign(group.key, group.queue)
        self.pending_usage.assign(group.key, group.queue)
        if group.previous_nodes is not None:
            self.restarting_groups.add(group.key)
        else:
            self.restarting_groups.discard(group.key)
        if group.is_admitted or not group.min_resources or group.key in self.admitted_at:
            self.unadmitted.discard(group.key)
        else:
            self.unadmitted.add(group.key)
        if group.joining:
            self.joining_groups.add(group.key)
        else:
            self.joining_groups.discard(group.key)

    def admit(self, admitted: frozenset[GroupKey], now: float) -> None:
        """Record that controllers may create the pods of these groups."""
        if not admitted:
            return
        # The pods of earlier ones tell what these ask for.
        awaited = {key: at for key, at in self.admitted_at.items() if not self.members.get(key)}
        self.admitted_at = {**awaited, **dict.fromkeys(admitted, now)}
        self.unadmitted -= admitted

    def remove_group(self, key: GroupKey) -> None:
        """Remove a group. Its pods stay known."""
        self._count_priority(self.groups.pop(key, None), -1)
        self.derived.drop(key)
        self.reservations.pop(key, None)
        self.usage.release(key)
        self.pending_usage.release(key)
        self.restarting_groups.discard(key)
        self.unadmitted.discard(key)
        self.admitted_at.pop(key, None)
        self.joining_groups.discard(key)
        self.lost_members.pop(key, None)
        self.former_members.pop(key, None)
        self._implied_groups.discard(key)
        self._update_implied_group(key)

    def _update_implied_group(self, key: GroupKey) -> None:
        """Add, change or remove the gang that annotations of its pods describe."""
        if is_kubernetes_group(key):
            # Its pods wait for the PodGroup: they name the queue at most.
            if key in self.groups:
                self._set_group(self.groups[key])
            return
        if key in self.groups and key not in self._implied_groups:
            return
        facts = implied_group_info(key, self.members.get(key, {}).values())
        if facts is None:
            if key in self._implied_groups:
                self._implied_groups.discard(key)
                self.remove_group(key)
        elif self.groups.get(key) != facts:
            self._implied_groups.add(key)
            self._set_group(facts)

    def _count_priority(self, group: PodGroupInfo | None, sign: int) -> None:
        if group is not None:
            self._group_priorities[group.priority] += sign
            if not self._group_priorities[group.priority]:
                del self._group_priorities[group.priority]

    def record_lost_member(self, pod: PodInfo, at: float, keep_s: float) -> None:
        """Record that a gang lost a member; losses older than ``keep_s`` seconds are dropped.

        Pods of a deleted job often end after their group: nothing would remove those records.
        """
        if pod.group is not None and pod.group in self.groups:
            recent = [lost for lost in self.lost_members[pod.group] if at - lost.at < keep_s]
            self.lost_members[pod.group] = [*recent, LostMember(pod, at)]

    def assume(self, key: PodKey, node: NodeName, volumes: Mapping[str, str] = _NO_VOLUMES) -> None:
        """Count a pod on the node it is being bound to.

        Args:
            volumes: the volumes that the cycle has chosen, by claim (``CycleResult.volumes``).
        """
        pod = self.pods[key]
        self._remove(pod)
        self._assumed[key] = node
        self._add(replace(pod, node=node))
        self._recharge_claims(pod)
        if pod.claims and self.storage.assume(pod, node, volumes):
            self.storage_changed()

    def forget_assumed(self, key: PodKey, uid: str) -> None:
        """Undo an assumption: the binding failed, the pod is pending again."""
        pod = self.pods.get(key)
        if pod is None or pod.uid != uid or self._assumed.pop(key, None) is None:
            return
        self._remove(pod)
        self._add(replace(pod, node=None))
        self._recharge_claims(pod)
        self._drop_unused_assumptions(pod)

    def _drop_unused_assumptions(self, former: PodInfo | None) -> None:
        if former is not None and former.device_claims:
            self.devices.drop_unused_assumptions(former)
        if former is not None and former.claims and self.storage.drop_unused_assumptions(former):
            self.storage_changed()

    def evict(self, key: PodKey, uid: str) -> None:
        """Count a pod as terminating from the moment the eviction is decided."""
        pod = self.pods.get(key)
        if pod is not None and pod.uid == uid:
            self._evicted[key] = uid
            self.set_pod(pod)

    def undo_eviction(self, key: PodKey, uid: str) -> None:
        """Undo an eviction that the API server refused."""
        pod = self.pods.get(key)
        if self._evicted.get(key) != uid or pod is None:
            return
        del self._evicted[key]
        self._remove(pod)
        self._add(replace(pod, is_terminating=False))

    def storage_changed(self) -> None:
        """Drop cached results of pods with claims when storage objects change."""
        self.counted_resources.clear()
        self.nodes.feasibility.clear()
        self.storage.invalidate()
        for claim in self.storage.waiting_pods:
            self._invalidate_users_of(claim)

    def _invalidate_users_of(self, claim: str) -> None:
        for key in self.storage.waiting_pods.get(claim, ()):
            pod = self.pods.get(key)
            if pod is not None and pod.group is not None:
                self.derived.pending.pop(pod.group, None)

    def _recharge_claims(self, pod: PodInfo) -> None:
        """Charge the devices of a pod's claims again: one of the pods that share them pays."""
        for claim in pod.device_claims:
            self._recharge_claim(claim)

    def _recharge_claim(self, claim: str) -> None:
        for pod in list(self.devices.users.get(claim, {}).values()):
            charged = self.devices.charge(pod)
            if charged.shape is not pod.shape:
                self._remove(pod)
                self._add(charged)

    def set_device_claim(self, key: str, claim: DeviceClaimInfo | None) -> None:
        """Add, change or remove (None) a claim of devices."""
        self.devices.set_claim(key, claim)
        self._recharge_claim(key)
        self.nodes.feasibility.clear()
        for pod in self.devices.users.get(key, {}).values():
            if pod.group is not None:
                self.derived.pending.pop(pod.group, None)

    def devices_changed(self, nodes: Iterable[NodeName | None]) -> None:
        """Count devices again, and drop cached results of pods with claims of devices.

        Args:
            nodes: nodes whose devices, or their classes, have changed; None: any.
        """
        changed = set(nodes)
        for name in list(self.nodes.rows) if None in changed else changed:
            row = self.nodes.rows.get(name) if name is not None else None
            node = self.nodes.infos[row] if row is not None else None
            if node is not None and self.devices.with_amounts(node) is not node:
                self.set_node(node)
        self.nodes.feasibility.clear()
        if self.devices.users:
            self.derived.pending.clear()

    def _count_claims(self, pod: PodInfo, sign: int) -> None:
        self.storage.update_pod(pod, sign)
        if self.storage.limits:
            self.counted_resources.clear()
        for claim in pod.claims:
            self._invalidate_users_of(claim)

    def schedulable_capacity(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes queues can use: usable, and open to a pod of this
        scheduler.

        A tainted node belongs to others (another team's pool, the control plane) unless a pod of
        this scheduler runs there or a pending pod tolerates the taint.
        """
        usable, tainted = self.nodes.usable(), self.nodes.tainted()
        if not (usable & tainted).any():
            return usable
        mask = usable & ~tainted
        for constraints in {shape.constraints for shape in self.pending_shapes}:
            mask |= usable & self.nodes.eligible(constraints).accepted
        for row in np.flatnonzero(usable & tainted & ~mask).tolist():
            node = self.nodes.infos[row]
            if node is not None and any(pod.is_ours for pod in self.pods_on(node.name)):
                mask[row] = True
        return mask

    def pods_on(self, node: NodeName) -> Iterable[PodInfo]:
        return self._on_node.get(node, {}).values()

    def lowest_priority(self) -> int:
        """Return a lower bound of the priorities of running pods."""
        return min(min(self._group_priorities, default=0), self._lowest_single_priority)

    def _add(self, pod: PodInfo) -> None:
        self.pods[pod.key] = pod
        if pod.group is not None:
            self.members[pod.group][pod.key] = pod
            self.derived.pending.pop(pod.group, None)
            if pod.implied_group is not None:
                self._update_implied_group(pod.group)
        if pod.claims:
            self._count_claims(pod, 1)
        if pod.device_claims:
            self.devices.update_pod(pod, 1)
        if pod.is_pending:
            self._enqueue(pod)
        if pod.holds_resources and pod.node is not None:
            self._on_node[pod.node][pod.key] = pod
            if pod.group is None:
                self._lowest_single_priority = min(self._lowest_single_priority, pod.priority)
            gang = pod.gang_id
            self.placed_members[gang][pod.key] = pod
            self.derived.running.pop(gang, None)
            self.nodes.charge_pod(pod)
            self._charge(pod, 1)

    def _enqueue(self, pod: PodInfo) -> None:
        self.pending[pod.key] = pod
        # New resources get their columns now: a cycle must not change the arrays.
        self.nodes.demand(pod.shape.request)
        self.pending_shapes[pod.shape] += 1
        self.pending_usage.charge(pod.group, pod.shape.request)
        if pod.group is None:
            self.pending_single_pods[pod.key] = pod
        else:
            self.pending_members[pod.group][pod.key] = pod

    def _remove(self, pod: PodInfo) -> None:
        del self.pods[pod.key]
        if pod.group is not None:
            _discard(self.members, pod.group, pod.key)
            self.derived.pending.pop(pod.group, None)
        if pod.claims:
            self._count_claims(pod, -1)
        if pod.device_claims:
            self.devices.update_pod(pod, -1)
        if self.pending.pop(pod.key, None) is not None:
            self._dequeue(pod)
        if pod.holds_resources and pod.node is not None:
            _discard(self._on_node, pod.node, pod.key)
            gang = pod.gang_id
            _discard(self.placed_members, gang, pod.key)
            self.derived.running.pop(gang, None)
            self.nodes.charge_pod(pod, -1)
            self._charge(pod, -1)

    def _dequeue(self, pod: PodInfo) -> None:
        self.pending_shapes[pod.shape] -= 1
        if not self.pending_shapes[pod.shape]:
            del self.pending_shapes[pod.shape]
        self.pending_usage.charge(pod.group, pod.shape.request, -1)
        if pod.group is None:
            self.pending_single_pods.pop(pod.key, None)
        else:
            _discard(self.pending_members, pod.group, pod.key)

    def _charge(self, pod: PodInfo, sign: int) -> None:
        # Pods of other schedulers without a group are charged to no queue: they only
        # reduce the capacity.
        if pod.is_ours or pod.group is not None:
            self.usage.charge(pod.group, pod.shape.request, sign)


class UsageLedger:
    """Requested amounts charged to gangs, and through them to queues."""

    def __init__(self, single_pod_queue: str) -> None:
        self.by_group: dict[GroupKey, Counter[str]] = defaultdict(Counter)
        self.by_queue: dict[str, Counter[str]] = defaultdict(Counter)
        self._queue_of: dict[GroupKey, str] = {}
        self._single_pod_queue = single_pod_queue
        """Queue that pods without a group are charged to."""
        self._largest: dict[tuple[str, int], list[tuple[int, GroupKey]]] = {}
        """Cached results of ``largest``, in descending order."""
        self._charged: set[GroupKey] = set()
        """Gangs that were charged since these results were computed."""

    def charge(self, group: GroupKey | None, request: Request, sign: int = 1) -> None:
        """Add a pod's request (``sign`` -1: subtract it)."""
        queue = self.by_queue[self.queue_of(group)]
        if group is None:
            for resource, amount in request:
                queue[resource] += sign * amount
            return
        if self._largest:
            self._record_charge(group)
        own = self.by_group[group]
        for resource, amount in request:
            queue[resource] += sign * amount
            own[resource] += sign * amount
        if not any(own.values()):
            del self.by_group[group]

    def _record_charge(self, group: GroupKey) -> None:
        self._charged.add(group)
        if len(self._charged) > MAX_CHARGED:
            self._largest.clear()
            self._charged.clear()

    def largest(self, resource: str, count: int) -> list[tuple[GroupKey, int]]:
        """Return the gangs with the largest usage of a resource; ties go to the last name."""
        if self._charged:
            # All gangs are scanned only if one of the largest has shrunk.
            for key, cached in list(self._largest.items()):
                self._largest[key] = self._updated(*key, cached)
                if not self._largest[key]:
                    del self._largest[key]
            self._charged.clear()
        ranked = self._largest.get((resource, count))
        if ranked is None:
            usages = ((used[resource], group) for group, used in self.by_group.items())
            ranked = self._largest[resource, count] = nlargest(count, usages)
        return [(group, amount) for amount, group in ranked]

    def _updated(
        self, resource: str, count: int, cached: list[tuple[int, GroupKey]]
    ) -> list[tuple[int, GroupKey]]:
        """Return the updated result; empty if the cached one does not determine it."""
        kept = [entry for entry in cached if entry[1] not in self._charged]
        charged = [(self.by_group[g][resource], g) for g in self._charged if g in self.by_group]
        ranked = nlargest(count, [*kept, *charged])
        if len(cached) < count:
            # The cached result had all gangs.
            return ranked
        # A gang that is neither cached nor charged is smaller than the last cached one.
        return ranked if len(ranked) == count and ranked[-1] >= cached[-1] else []

    def queue_of(self, group: GroupKey | None) -> str:
        """Return the queue that a gang is charged to."""
        return self._single_pod_queue if group is None else self._queue_of.get(group, NO_QUEUE)

    def assign(self, group: GroupKey, queue: str) -> None:
        """Charge a gang to a queue, including its earlier usage."""
        former = self.queue_of(group)
        if former == queue:
            return
        self._queue_of[group] = queue
        own = self.by_group.get(group, Counter())
        self.by_queue[former].subtract(own)
        self.by_queue[queue].update(own)

    def release(self, group: GroupKey) -> None:
        """Charge a gang to no queue any more: its group was deleted."""
        self.assign(group, NO_QUEUE)
        self._queue_of.pop(group, None)


def _discard(index: dict[K, dict[PodKey, PodInfo]], key: K, pod: PodKey) -> None:
    entry = index.get(key)
    if entry is not None:
        entry.pop(pod, None)
        if not entry:
            del index[key]


def first_described(members: Iterable[PodInfo]) -> PodInfo | None:
    """Return the oldest member whose annotations describe its gang."""
    described = [pod for pod in members if pod.implied_group is not None]
    return min(described, key=lambda pod: (pod.created, pod.key), default=None)


def implied_group_info(key: GroupKey, members: Iterable[PodInfo]) -> PodGroupInfo | None:
    """Return the gang that its members describe; None: none of them does.

    The oldest member decides, so that the order of arrival does not matter.
    """
    first = first_described(members)
    if first is None or first.implied_group is None:
        return None
    return PodGroupInfo(
        key=key,
        min_member=first.implied_group.min_member,
        queue=first.implied_group.queue,
        priority=first.priority,
        priority_class=first.quota_attributes.priority_class or "",
        created=first.created,
        min_resources=first.implied_group.min_resources,
    )
