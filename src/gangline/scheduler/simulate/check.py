"""An independent judge: looks at every decision of a simulation and knows nothing of how it came.

Works on plain sums over pods, not on the scheduler's arrays, so that an error there shows here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gangline.scheduler.model import HOST_PORT, Decision, GroupKey, NodeName, PodFacts
from gangline.scheduler.state import ClusterState


class Wrong(AssertionError):
    """A decision breaks a rule. The message says which and where."""


def check(state: ClusterState, decision: Decision, now: float) -> None:
    """Look at a decision before it is carried out.

    Raises:
        Wrong: it breaks a rule.
    """
    for fault in faults(state, decision):
        raise Wrong(f"at {now}: {fault}")


def faults(state: ClusterState, decision: Decision) -> Iterator[str]:
    """Return the rules that a decision breaks, in words."""
    bound = {binding.pod: binding.node for binding in decision.bindings}
    if len(bound) != len(decision.bindings):
        yield "a pod is bound twice"
    for pod in bound:
        if not state.pods[pod].waits:
            yield f"{pod} is bound and does not wait"
    yield from _overcommitted(state, decision)
    yield from _incomplete(state, decision)
    yield from _above_limits(state, decision)
    yield from _wrongly_evicted(state, decision)


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
    for name in sorted(asked):
        node = state.nodes.facts[state.nodes.rows[NodeName(name)]]
        if node is None or not node.ready or node.unschedulable:
            yield f"{name} takes no pods"
            continue
        has = dict(node.allocatable)
        for resource in sorted(asked[name]):
            most = 1 if resource.startswith(HOST_PORT) else has.get(resource, 0)
            if used[name][resource] > most:
                yield f"{name} has {most} {resource}, {used[name][resource]} are used"


def _incomplete(state: ClusterState, decision: Decision) -> Iterator[str]:
    new: Counter[GroupKey] = Counter(b.group for b in decision.bindings if b.group is not None)
    for key, count in new.items():
        members = state.members[key].values()
        settled = sum(_settled(pod) for pod in members)
        if settled + count < state.groups[key].min_member:
            yield f"{key} has {settled + count} of {state.groups[key].min_member} pods"


def _settled(pod: PodFacts) -> bool:
    return pod.phase == "Succeeded" or (pod.holds_room and not pod.terminating)


def _above_limits(state: ClusterState, decision: Decision) -> Iterator[str]:
    used: dict[str, Counter[str]] = defaultdict(Counter)
    grown: set[tuple[str, str]] = set()
    bound = {binding.pod for binding in decision.bindings}
    for pod in state.pods.values():
        group = state.groups.get(pod.group) if pod.group is not None else None
        if group is None or not (pod.holds_room or pod.key in bound):
            continue
        name = group.queue
        for _ in range(len(state.queues)):
            used[name].update(dict(pod.shape.request))
            if pod.key in bound:
                grown.update((name, resource) for resource, amount in pod.shape.request if amount)
            if name not in state.queues or not state.queues[name].parent:
                break
            name = state.queues[name].parent
    for name, resource in sorted(grown):
        queue = state.queues.get(name)
        most = dict(queue.capability).get(resource) if queue is not None else None
        if most is not None and used[name][resource] > most:
            yield f"queue {name} may use {most} {resource}, it would use {used[name][resource]}"


def _wrongly_evicted(state: ClusterState, decision: Decision) -> Iterator[str]:
    waiting = {str(key): group for key, group in state.groups.items()}
    left = Counter(eviction.group for eviction in decision.evictions if eviction.group is not None)
    for eviction in decision.evictions:
        pod = state.pods[eviction.pod]
        victim = state.groups.get(pod.group) if pod.group is not None else None
        other = waiting.get(eviction.beneficiary)
        if not pod.preemptable or (victim is not None and not victim.preemptable):
            yield f"{pod.key} may not be evicted"
        if victim is None or other is None:
            continue
        if victim.queue == other.queue and victim.priority >= other.priority:
            yield f"{pod.key} is evicted for {eviction.beneficiary}, which has no higher priority"
        if victim.queue != other.queue and not state.queues[victim.queue].reclaimable:
            yield f"{pod.key} is evicted from queue {victim.queue}, which is exempt"
    for key, gone in left.items():
        members = state.members[key].values()
        stay = sum(_settled(pod) for pod in members) - gone
        if 0 < stay < state.groups[key].min_member:
            yield f"{key} is broken, but {stay} of its pods stay"
