"""The decision oracle: an independent check of every result of a cycle.

It uses plain sums over pods, not the scheduler's arrays, and implements the rules in the simplest
way, so that an error of the scheduler is visible here. It shares the values of the cache with the
scheduler, and no code that decides.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gangline.scheduler.model import HOST_PORT, Decision, GroupKey, PodFacts, Request
from gangline.scheduler.simulate.check_evictions import wrongly_evicted
from gangline.scheduler.simulate.check_places import misplaced
from gangline.scheduler.simulate.check_pools import outside_pools, torn_apart
from gangline.scheduler.simulate.check_queues import above_limits
from gangline.scheduler.state import ClusterState


class Wrong(AssertionError):
    """A result violates a rule. The message says which one and where."""


def check(state: ClusterState, decision: Decision, now: float) -> None:
    """Check a result before it is applied.

    Raises:
        Wrong: it violates a rule.
    """
    for fault in faults(state, decision):
        raise Wrong(f"at {now}: {fault}")


def faults(state: ClusterState, decision: Decision) -> Iterator[str]:
    """Yield the rules that a result violates."""
    bound = {binding.pod for binding in decision.bindings}
    if len(bound) != len(decision.bindings):
        yield "a pod is bound twice"
    for binding in decision.bindings:
        pod = state.pods[binding.pod]
        if not pod.waits or pod.uid != binding.uid:
            yield f"{pod.key} is bound and does not wait"
    yield from _overcommitted(state, decision)
    yield from _incomplete(state, decision)
    yield from misplaced(state, decision)
    yield from outside_pools(state, decision)
    yield from torn_apart(state, decision)
    yield from above_limits(state, decision)
    yield from wrongly_evicted(state, decision)


def _overcommitted(state: ClusterState, decision: Decision) -> Iterator[str]:
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in state.pods.values():
        if pod.holds_room and pod.node is not None:
            used[pod.node].update(dict(pod.shape.request))
    asked: dict[str, set[str]] = defaultdict(set)
    for binding in decision.bindings:
        request = {name: amount for name, amount in state.pods[binding.pod].shape.request if amount}
        used[binding.node].update(request)
        asked[binding.node] |= request.keys()
    allocatable: dict[str, Request] = {
        node.name: node.allocatable for node in state.nodes.facts if node is not None
    }
    for name in sorted(asked):
        has = dict(allocatable.get(name, ()))
        for resource in sorted(asked[name]):
            most = 1 if resource.startswith(HOST_PORT) else has.get(resource, 0)
            if used[name][resource] > most:
                yield f"{name} has {most} {resource}, {used[name][resource]} are used"


def _incomplete(state: ClusterState, decision: Decision) -> Iterator[str]:
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


def _settled(pod: PodFacts) -> bool:
    return pod.phase == "Succeeded" or (pod.holds_room and not pod.terminating)
