"""The scheduler cache: nodes as arrays, pods by node and by gang, groups and queues.

The cache is updated incrementally: each change costs only what it concerns. A pod whose binding the
API server has not confirmed yet is *assumed*: its request counts on the chosen node, so that the
next cycle does not allocate the same resources again.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gangline.api.scheduling import DEFAULT_QUEUE
from gangline.scheduler.budgets import BudgetFacts
from gangline.scheduler.ledger import Ledger
from gangline.scheduler.model import (
    GroupFacts,
    GroupKey,
    NodeFacts,
    NodeName,
    PodFacts,
    PodKey,
    Promise,
    QueueFacts,
    Shape,
)
from gangline.scheduler.nodes import DEFAULT_WEIGHTS, NodeTable
from gangline.scheduler.plugins.node_scores import Weights
from gangline.scheduler.quotas import QuotaFacts
from gangline.scheduler.run_times import RunTimes
from gangline.scheduler.storage import Storage

K = TypeVar("K", bound=str)


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A member that a gang has lost, with the node it ran on."""

    pod: PodFacts
    at: float
    """Time of the loss, in seconds on the clock of the cache."""


class ClusterState:
    """What is known now. Only informers, the loop and tests change it; a cycle reads it."""

    def __init__(self, weights: Weights = DEFAULT_WEIGHTS) -> None:
        self.nodes = NodeTable(weights)
        self.boasting: set[NodeName] = set()
        """Nodes whose allocatable amounts exceed their capacity."""
        self.pods: dict[PodKey, PodFacts] = {}
        self.waiting: dict[PodKey, PodFacts] = {}
        """Pods that this scheduler has to place."""
        self.waiting_shapes: Counter[Shape] = Counter()
        self.waiting_alone: dict[PodKey, PodFacts] = {}
        """Pending pods without a group."""
        self.waiting_members: dict[GroupKey, dict[PodKey, PodFacts]] = defaultdict(dict)
        """Pending pods of gangs, by group."""
        self.running = Ledger(DEFAULT_QUEUE)
        """Usage of gangs and queues."""
        self.requested = Ledger(DEFAULT_QUEUE)
        """Requests of pending pods, by gang and queue."""
        self.budgets: dict[str, BudgetFacts] = {}
        self.quotas: dict[str, dict[str, QuotaFacts]] = {}
        """Quotas by namespace and name."""
        self.promises: dict[str, Promise] = {}
        """Reservations by the name of their gang."""
        self.run_times = RunTimes()
        """How long gangs of each family ran."""
        self.lodgers: dict[GroupKey, str] = {}
        """Gangs that were let into planned room on an estimate alone, and whose room it is."""
        self.storage = Storage()
        self.supplied: set[str] = set()
        """Counted resources (free volumes, attachments) that are current on all nodes. The empty
        name is in the set once those of all pending pods are.
        """
        self.memo: dict[GroupKey, object] = {}
        """Results of cycles that depend on a group and its members alone; dropped when one of them
        changes.
        """
        self.members: dict[GroupKey, dict[PodKey, PodFacts]] = defaultdict(dict)
        self.groups: dict[GroupKey, GroupFacts] = {}
        self.restarting: set[GroupKey] = set()
        """Groups that announce previous nodes."""
        self.queues: dict[str, QueueFacts] = {}
        self.vacated: dict[GroupKey, list[Vacancy]] = defaultdict(list)
        """Members that left their nodes without success, by gang."""
        self.former: dict[GroupKey, dict[PodKey, PodFacts]] = defaultdict(dict)
        """Deleted members of existing groups that had a node, the latest of each name. A recreated
        pod of the same name is expected to request the same.
        """
        self.placed_members: dict[str, dict[PodKey, PodFacts]] = defaultdict(dict)
        """Pods that hold resources, by the name of their gang or their own key."""
        self._on_node: dict[NodeName, dict[PodKey, PodFacts]] = defaultdict(dict)
        self.nodes.occupants = self._on_node
        self._assumed: dict[PodKey, NodeName] = {}
        self._lowest_alone = 2**31
        self._group_priorities: Counter[int] = Counter()
        """Number of groups of each priority."""
        self._evicted: dict[PodKey, str] = {}
        """Pods being evicted, with their uids, until the API server shows the deletion."""

    def set_node(self, node: NodeFacts) -> None:
        """Add or change a node. Pods that were seen on it before it was known are counted."""
        known = node.name in self.nodes.rows
        self.supplied.clear()
        self.nodes.set(node)
        (self.boasting.add if node.boasts else self.boasting.discard)(node.name)
        if not known:
            for pod in self._on_node.get(node.name, {}).values():
                self.nodes.occupy(pod)

    def remove_node(self, name: NodeName) -> None:
        """Remove a node. Its pods stay known in case it comes back."""
        self.nodes.remove(name)
        self.boasting.discard(name)

    def set_pod(self, pod: PodFacts) -> None:
        """Add or change a pod. A pod of the same name with another uid replaces the old one."""
        known = self.pods.get(pod.key)
        assumed = self._assumed.get(pod.key)
        if known is not None and assumed is not None:
            if known.uid == pod.uid and pod.node is None:
                # The event may be older than the binding. The assumption holds until the API
                # server shows a node.
                pod = replace(pod, node=assumed)
            else:
                del self._assumed[pod.key]
        if self._evicted.get(pod.key) == pod.uid:
            pod = replace(pod, terminating=True)
        else:
            self._evicted.pop(pod.key, None)
        if known == pod:
            # The API server confirms the assumption, or the change does not affect any cycle.
            return
        if known is not None:
            self._forget(known)
        self._remember(pod)

    def remove_pod(self, key: PodKey) -> None:
        self._assumed.pop(key, None)
        self._evicted.pop(key, None)
        known = self.pods.get(key)
        if known is not None:
            self._forget(known)
            if known.group is not None and known.group in self.groups and known.node is not None:
                self.former[known.group][key] = known

    def set_group(self, group: GroupFacts) -> None:
        self._count_priority(self.groups.get(group.key), -1)
        self.groups[group.key] = group
        self._count_priority(group, 1)
        self.memo.pop(group.key, None)
        self.running.assign(group.key, group.queue)
        self.requested.assign(group.key, group.queue)
        if group.places is not None:
            self.restarting.add(group.key)
        else:
            self.restarting.discard(group.key)
        if group.lodges_with:
            self.lodgers.setdefault(group.key, group.lodges_with)
        for pod in self.members.get(group.key, {}).values():
            self._learn(pod)

    def remove_group(self, key: GroupKey) -> None:
        """Remove a group. Its pods stay known."""
        self._count_priority(self.groups.pop(key, None), -1)
        self.memo.pop(key, None)
        self.promises.pop(key, None)
        self.running.release(key)
        self.requested.release(key)
        self.restarting.discard(key)
        self.vacated.pop(key, None)
        self.former.pop(key, None)
        self.lodgers.pop(key, None)

    def _learn(self, pod: PodFacts) -> None:
        """Record the run time of an ended member."""
        group = self.groups.get(pod.group) if pod.group is not None else None
        if group is not None and pod.finished and 0 < pod.started < pod.ended:
            whole = pod.phase == "Succeeded"
            ran = pod.ended - pod.started
            self.run_times.ended(group.family, group.uid or group.key, ran, whole=whole)

    def _count_priority(self, group: GroupFacts | None, sign: int) -> None:
        if group is not None:
            self._group_priorities[group.priority] += sign
            if not self._group_priorities[group.priority]:
                del self._group_priorities[group.priority]

    def vacate(self, pod: PodFacts, at: float, keep_s: float) -> None:
        """Record that a gang lost a member; losses older than ``keep_s`` seconds are dropped."""
        if pod.group is not None:
            recent = [lost for lost in self.vacated[pod.group] if at - lost.at < keep_s]
            self.vacated[pod.group] = [*recent, Vacancy(pod, at)]

    def assume(self, key: PodKey, node: NodeName) -> None:
        """Count a pod on the node it is being bound to."""
        pod = self.pods[key]
        self._forget(pod)
        self._assumed[key] = node
        self._remember(replace(pod, node=node))

    def unassume(self, key: PodKey, uid: str) -> None:
        """Undo an assumption: the binding failed, the pod is pending again."""
        pod = self.pods.get(key)
        if pod is None or pod.uid != uid or self._assumed.pop(key, None) is None:
            return
        self._forget(pod)
        self._remember(replace(pod, node=None))

    def evict(self, key: PodKey, uid: str) -> None:
        """Count a pod as terminating from the moment the eviction is decided."""
        pod = self.pods.get(key)
        if pod is not None and pod.uid == uid:
            self._evicted[key] = uid
            self.set_pod(pod)

    def pardon(self, key: PodKey, uid: str) -> None:
        """Undo an eviction that the API server refused."""
        pod = self.pods.get(key)
        if self._evicted.get(key) != uid or pod is None:
            return
        del self._evicted[key]
        self._forget(pod)
        self._remember(replace(pod, terminating=False))

    def storage_changed(self) -> None:
        """Drop cached results of pods with claims when storage objects change."""
        self.supplied.clear()
        self.storage.attached.clear()
        for claim in self.storage.waiting:
            self._look_again(claim)

    def _look_again(self, claim: str) -> None:
        for key in self.storage.waiting.get(claim, ()):
            pod = self.pods.get(key)
            if pod is not None and pod.group is not None:
                self.memo.pop(pod.group, None)

    def _note_claims(self, pod: PodFacts, sign: int) -> None:
        self.storage.note(pod, sign)
        if self.storage.limits:
            self.supplied.clear()
        for claim in pod.claims:
            self._look_again(claim)

    def obtainable(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes queues can use: usable, and open to a pod of this
        scheduler.

        A tainted node belongs to others (another team's pool, the control plane) unless a pod of
        this scheduler runs there or a pending pod tolerates the taint.
        """
        usable, tainted = self.nodes.usable(), self.nodes.tainted()
        if not (usable & tainted).any():
            return usable
        mask = usable & ~tainted
        for constraints in {shape.constraints for shape in self.waiting_shapes}:
            mask |= usable & self.nodes.eligible(constraints).accepts
        for row in np.flatnonzero(usable & tainted & ~mask).tolist():
            node = self.nodes.facts[row]
            if node is not None and any(pod.ours for pod in self.pods_on(node.name)):
                mask[row] = True
        return mask

    def pods_on(self, node: NodeName) -> Iterable[PodFacts]:
        return self._on_node.get(node, {}).values()

    def lowest_priority(self) -> int:
        """Return a lower bound of the priorities of running pods."""
        return min(min(self._group_priorities, default=0), self._lowest_alone)

    def is_assumed(self, key: PodKey) -> bool:
        return key in self._assumed

    def _remember(self, pod: PodFacts) -> None:
        self.pods[pod.key] = pod
        if pod.group is not None:
            self.members[pod.group][pod.key] = pod
            self.memo.pop(pod.group, None)
            self._learn(pod)
        if pod.claims:
            self._note_claims(pod, 1)
        if self.nodes.weights.fragments and (pod.waits or pod.holds_room):
            self.nodes.popularity.note(pod.shape.request, 1)
        if pod.waits:
            self._enqueue(pod)
        if pod.holds_room and pod.node is not None:
            self._on_node[pod.node][pod.key] = pod
            if pod.group is None:
                self._lowest_alone = min(self._lowest_alone, pod.priority)
            self.placed_members[pod.group or pod.key][pod.key] = pod
            self.nodes.occupy(pod)
            self._charge(pod, 1)

    def _enqueue(self, pod: PodFacts) -> None:
        self.waiting[pod.key] = pod
        # New resources get their columns now: a cycle must not change the arrays.
        self.nodes.demand(pod.shape.request)
        self.waiting_shapes[pod.shape] += 1
        self.requested.charge(pod.group, pod.shape.request)
        if pod.group is None:
            self.waiting_alone[pod.key] = pod
        else:
            self.waiting_members[pod.group][pod.key] = pod

    def _forget(self, pod: PodFacts) -> None:
        del self.pods[pod.key]
        if pod.group is not None:
            _discard(self.members, pod.group, pod.key)
            self.memo.pop(pod.group, None)
        if pod.claims:
            self._note_claims(pod, -1)
        if self.nodes.weights.fragments and (pod.waits or pod.holds_room):
            self.nodes.popularity.note(pod.shape.request, -1)
        if self.waiting.pop(pod.key, None) is not None:
            self._dequeue(pod)
        if pod.holds_room and pod.node is not None:
            _discard(self._on_node, pod.node, pod.key)
            _discard(self.placed_members, pod.group or pod.key, pod.key)
            self.nodes.occupy(pod, -1)
            self._charge(pod, -1)

    def _dequeue(self, pod: PodFacts) -> None:
        self.waiting_shapes[pod.shape] -= 1
        if not self.waiting_shapes[pod.shape]:
            del self.waiting_shapes[pod.shape]
        self.requested.charge(pod.group, pod.shape.request, -1)
        if pod.group is None:
            self.waiting_alone.pop(pod.key, None)
        else:
            _discard(self.waiting_members, pod.group, pod.key)

    def _charge(self, pod: PodFacts, sign: int) -> None:
        # Pods of other schedulers without a group are charged to no queue: they only
        # reduce the capacity.
        if pod.ours or pod.group is not None:
            self.running.charge(pod.group, pod.shape.request, sign)


def _discard(index: dict[K, dict[PodKey, PodFacts]], key: K, pod: PodKey) -> None:
    entry = index.get(key)
    if entry is not None:
        entry.pop(pod, None)
        if not entry:
            del index[key]
