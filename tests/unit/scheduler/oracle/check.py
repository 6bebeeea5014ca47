"""The decision oracle: an independent check of every result of a cycle.

It uses plain sums over pods, not the scheduler's arrays, and implements the rules in the simplest
way, so that an error of the scheduler is visible here. It shares the values of the cache with the
scheduler, and no code that decides.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    HOST_PORT_CAPACITY,
    HOST_PORT_PREFIX,
    CycleResult,
    GroupKey,
    PodInfo,
    Request,
)
from unit.scheduler.oracle.evictions import eviction_violations
from unit.scheduler.oracle.node_groups import node_group_violations, subgroup_violations
from unit.scheduler.oracle.placement import placement_violations
from unit.scheduler.oracle.queues import queue_violations


class Violation(AssertionError):
    """A result violates a rule. The message says which one and where."""


def check_result(state: SchedulerCache, decision: CycleResult, now: float) -> None:
    """Check a result before it is applied.

    Raises:
        Wrong: it violates a rule.
    """
    for fault in violations(state, decision):
        raise Violation(f"at {now}: {fault}")


def violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the rules that a result violates."""
    bound = {binding.pod for binding in decision.bindings}
    if len(bound) != len(decision.bindings):
        yield "a pod is bound twice"
    for binding in decision.bindings:
        pod = state.pods[binding.pod]
        if not pod.is_pending or pod.uid != binding.uid:
            yield f"{pod.key} is bound and does not wait"
    yield from _overcommitted(state, decision)
    yield from _incomplete(state, decision)
    yield from placement_violations(state, decision)
    yield from node_group_violations(state, decision)
    yield from subgroup_violations(state, decision)
    yield from queue_violations(state, decision)
    yield from eviction_violations(state, decision)


def _overcommitted(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in state.pods.values():
        if pod.holds_resources and pod.node is not None:
            used[pod.node].update(dict(pod.shape.request))
    asked: dict[str, set[str]] = defaultdict(set)
    for binding in decision.bindings:
        request = {name: amount for name, amount in state.pods[binding.pod].shape.request if amount}
        used[binding.node].update(request)
        asked[binding.node] |= request.keys()
    allocatable: dict[str, Request] = {
        node.name: node.allocatable for node in state.nodes.infos if node is not None
    }
    for name in sorted(asked):
        has = dict(allocatable.get(name, ()))
        for resource in sorted(asked[name]):
            is_port = resource.startswith(HOST_PORT_PREFIX)
            most = HOST_PORT_CAPACITY if is_port else has.get(resource, 0)
            if used[name][resource] > most:
                yield f"{name} has {most} {resource}, {used[name][resource]} are used"


def _incomplete(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    bound = {binding.pod for binding in decision.bindings}
    gangs: set[GroupKey] = {b.group for b in decision.bindings if b.group is not None}
    for key in sorted(gangs | decision.placed):
        group = state.groups[key]
        there = [pod for pod in state.members[key].values() if _settled(pod) or pod.key in bound]
        if len(there) < group.min_member:
            yield f"{key} has {len(there)} of {group.min_member} pods"
        roles = Counter(pod.role for pod in there)
        for role, minimum in group.min_task_member:
            if roles[role] < minimum:
                yield f"{key} has {roles[role]} of {minimum} pods of role {role}"


def _settled(pod: PodInfo) -> bool:
    return pod.phase == "Succeeded" or (pod.holds_resources and not pod.is_terminating)
