"""Admission of gangs whose pods do not exist yet: Volcano's ``enqueue`` with ``overcommit`` and
``sla``.

A controller that waits for the phase Inqueue creates the pods of a gang then. So that a thousand
waiting gangs do not make their pods, a gang that states its ``minResources`` is admitted if one of
these holds:

1. Usage, what admitted gangs still ask for, and its request are at most the capacity of the cluster
   times a factor. Usage of gangs that it may preempt does not count.
2. Its queue stays within its fair share with it: it may reclaim what others borrow.
3. It has waited for longer than its ``sla-waiting-time``.

In each case the limits of its queue must allow it. Gangs with pods, or without ``minResources``,
are always admitted. One gang of each queue is considered in turn, in the order in which a cycle
serves queues; a gang that is refused leaves the budget to smaller ones.

Invariant: requests of admitted gangs without pods exceed neither the factor nor the fair shares.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.cache import SchedulerCache, UsageLedger
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.admission import (
    check_admission,
    missing_pods_request,
    over_queue_limit,
)
from gangline.scheduler.queueing.queue_tree import QueueTree, ShareClaim, Vector
from gangline.scheduler.types import GroupKey, PendingReason, PodGroupInfo

DEFAULT_FACTOR = 1.2
CREATION_TIMEOUT_S = 300.0
"""After this time an admitted gang without pods asks for nothing: no controller may create them."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """How many gangs without pods are admitted, and how long gangs may wait."""

    factor: float | None = DEFAULT_FACTOR
    """Part of the capacity that usage and requests may reach; None: all gangs are admitted."""
    factors: tuple[tuple[str, float], ...] = ()
    """The same for single resources."""
    waiting_time_s: float = 0.0
    """After this time a gang is admitted and served first in its queue, unless it states another
    one; 0: never.
    """


OVERCOMMIT = AdmissionPolicy()
"""The default of Volcano's plug-in."""


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    admitted: frozenset[GroupKey] = frozenset()
    refused: tuple[PendingReason, ...] = ()


def deadline_of(group: PodGroupInfo, policy: AdmissionPolicy) -> float:
    """Return when a gang has waited too long, in seconds since the epoch; infinite: never."""
    waiting_time_s = group.waiting_time_s or policy.waiting_time_s
    return group.created.timestamp() + waiting_time_s if waiting_time_s else inf


def next_deadline(state: SchedulerCache, policy: AdmissionPolicy, now: float) -> float | None:
    """Return when the next gang that is pending, or not admitted, has waited too long."""
    groups = (state.groups.get(key) for key in (*state.pending_members, *state.unadmitted))
    deadlines = (deadline_of(group, policy) for group in groups if group is not None)
    first = min((deadline for deadline in deadlines if deadline > now), default=inf)
    return first if first < inf else None


def admit_gangs(
    state: SchedulerCache, policy: AdmissionPolicy, preempts: bool, now: float
) -> AdmissionResult:
    """Return which of the gangs that are not admitted are admitted now, and why others are not.

    Args:
        preempts: whether gangs may evict gangs of lower priority in their queue.
    """
    admitted: set[GroupKey] = set()
    candidates: list[PodGroupInfo] = []
    for key in state.unadmitted:
        group = state.groups[key]
        if state.members.get(key) or policy.factor is None:
            admitted.add(key)
        elif check_admission(state, group) is None:
            candidates.append(group)
    if not candidates:
        return AdmissionResult(frozenset(admitted))
    budget = _Budget(state, policy, preempts, candidates, now)
    refused: list[PendingReason] = []
    for group in budget.in_turn(candidates, policy, now):
        if (reason := budget.refuse(group, deadline_of(group, policy) <= now)) is None:
            admitted.add(group.key)
        else:
            refused.append(reason)
    return AdmissionResult(frozenset(admitted), tuple(refused))


@dataclass(slots=True)
class _Budget:
    """What the cluster and its queues still admit."""

    state: SchedulerCache
    policy: AdmissionPolicy
    preempts: bool
    candidates: Iterable[PodGroupInfo]
    now: float
    tree: QueueTree = field(init=False)
    capacity: Vector = field(init=False)
    """Capacity times the factors."""
    _outranked: dict[tuple[str, int], Vector] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        state = self.state
        waiting = UsageLedger("")
        for queue, amounts in state.pending_usage.by_queue.items():
            waiting.by_queue[queue].update(amounts)
        for group in self.candidates:
            waiting.by_queue[group.queue].update(dict(group.min_resources))
        self.tree = QueueTree(
            state.queues,
            state.nodes,
            state.usage,
            waiting,
            state.schedulable_capacity(),
            state.queue_structure,
        )
        factors = np.full(len(self.tree.columns), self.policy.factor or 1.0)
        for name, factor in self.policy.factors:
            if name in self.tree.columns:
                factors[self.tree.columns[name]] = factor
        self.capacity = self.tree.total * factors
        for key, group in state.groups.items():
            waits = key in state.pending_members or not state.members.get(key)
            if (
                waits
                and group.min_resources
                and key not in state.unadmitted
                and group.queue in self.tree.queues
            ):
                self._charge(group.queue, self._still_asked(group))

    def _still_asked(self, group: PodGroupInfo) -> Vector:
        """Return the part of an admitted gang's request that has no nodes."""
        members = self.state.members.get(group.key, {}).values()
        # Before a restart of the scheduler it was admitted at an unknown time after its creation.
        admitted_at = self.state.admitted_at.get(group.key, group.created.timestamp())
        has_run = group.key in self.state.former_members
        if not members and (has_run or self.now >= admitted_at + CREATION_TIMEOUT_S):
            return self.tree.vector({})
        settled = sum(pod.node is not None or pod.is_finished for pod in members)
        missing = max(0, group.size - settled) / max(1, group.size)
        return self.tree.vector(dict(group.min_resources)) * missing

    def _charge(self, queue: str, amount: Vector) -> None:
        self.tree.reserve(queue, amount)
        self.tree.promise(queue, amount)
        self.tree.root.reserve(amount)

    def in_turn(
        self, candidates: Iterable[PodGroupInfo], policy: AdmissionPolicy, now: float
    ) -> Iterable[PodGroupInfo]:
        """Yield the gangs in order; of equal queues, that with the smaller share is next."""
        by_queue: dict[str, list[PodGroupInfo]] = {}
        for group in candidates:
            by_queue.setdefault(group.queue, []).append(group)

        def rank(queue: str) -> tuple[int, float, str]:
            attributes = self.tree.queues[queue]
            return -attributes.info.priority, attributes.claimed_share, queue

        for groups in by_queue.values():
            groups.sort(key=lambda group: _order(group, policy, now), reverse=True)
        queues = [rank(queue) for queue in by_queue]
        heapify(queues)
        while queues:
            *_, queue = heappop(queues)
            yield by_queue[queue].pop()
            if by_queue[queue]:
                heappush(queues, rank(queue))

    def refuse(self, group: PodGroupInfo, is_overdue: bool) -> PendingReason | None:
        """Admit a gang and return None, or return why it is not admitted."""
        tree = self.tree
        asked = tree.vector(dict(missing_pods_request(group, ())))
        if (queue := tree.blocking_queue(group.queue, asked)) is not None:
            return over_queue_limit(group, queue.info.name)
        claimed = tree.root.used + tree.root.reserved
        over = (claimed + asked > self.capacity) & (asked > 0)
        if over.any() and not is_overdue:
            relieved = claimed - self._outranked_usage(group)
            over &= relieved + asked > self.capacity
            if over.any() and tree.claim(group.queue, asked) is not ShareClaim.WITHIN:
                return self._reason(group, claimed, asked, over)
        self._charge(group.queue, asked)
        return None

    def _outranked_usage(self, group: PodGroupInfo) -> Vector:
        """Return the usage of running gangs that a gang may preempt."""
        key = (group.queue, group.priority)
        if key not in self._outranked:
            total: Counter[str] = Counter()
            groups = self.state.groups
            for other, amounts in self.state.usage.by_group.items() if self.preempts else ():
                facts = groups.get(other)
                if (
                    facts is not None
                    and facts.queue == group.queue
                    and facts.priority < group.priority
                    and facts.preemptable
                ):
                    total.update(amounts)
            self._outranked[key] = self.tree.vector(total)
        return self._outranked[key]

    def _reason(
        self, group: PodGroupInfo, claimed: Vector, asked: Vector, over: NDArray[np.bool_]
    ) -> PendingReason:
        short = {name: column for name, column in self.tree.columns.items() if over[column]}
        texts = [
            messages.amounts_text({name: int(vector[column]) for name, column in short.items()})
            for vector in (asked, claimed, self.capacity)
        ]
        return PendingReason(
            messages.OVERCOMMITTED, messages.OVERCOMMITTED_MESSAGE.format(*texts), (), group.key
        )


def _order(
    group: PodGroupInfo, policy: AdmissionPolicy, now: float
) -> tuple[bool, int, float, float, str]:
    deadline = deadline_of(group, policy)
    return deadline > now, -group.priority, deadline, group.created.timestamp(), group.key
