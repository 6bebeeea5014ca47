"""Oracle of evictions: each is allowed, justified by priority or share, and sufficient."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    HOST_PORT_CAPACITY,
    HOST_PORT_PREFIX,
    CycleResult,
    EvictionMode,
    GroupKey,
    PodEviction,
    PodInfo,
    PodKey,
)
from unit.scheduler.oracle.queues import TOLERANCE, QueueOracle, queue_of

_SYSTEM_PRIORITY = 2_000_000_000


def eviction_violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the evictions that violate a rule."""
    if not decision.evictions:
        return
    if len({eviction.pod for eviction in decision.evictions}) < len(decision.evictions):
        yield "a pod is evicted twice"
    yield from _exempt(state, decision)
    yield from _over_budget(state, decision)
    yield from _half_broken(state, decision)
    yield from _useless_evictions(state, decision)
    books = QueueOracle(state)
    by_beneficiary: dict[str, list[PodEviction]] = defaultdict(list)
    for eviction in decision.evictions:
        by_beneficiary[eviction.beneficiary].append(eviction)
    for name, evictions in by_beneficiary.items():
        yield from _unjustified_evictions(state, books, decision, name, evictions)


def _exempt(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    for eviction in decision.evictions:
        pod = state.pods[eviction.pod]
        group = state.groups.get(pod.group) if pod.group is not None else None
        system = pod.priority >= _SYSTEM_PRIORITY or pod.key.startswith("kube-system/")
        if not pod.holds_resources or pod.is_terminating or pod.uid != eviction.uid:
            yield f"{pod.key} is evicted, and does not run or is terminating"
        if not pod.preemptable or (group is not None and not group.preemptable):
            yield f"{pod.key} may not be evicted"
        if system or not (pod.is_ours or pod.group is not None):
            yield f"{pod.key} is evicted and belongs to another scheduler"


def _over_budget(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    for budget in state.budgets.values():
        covered = sum(
            state.pods[eviction.pod].key.split("/")[0] == budget.namespace
            and budget.selector.matches(dict(state.pods[eviction.pod].labels))
            for eviction in decision.evictions
        )
        if covered > budget.allowed:
            yield f"{covered} pods of {budget.key} are evicted, {budget.allowed} may be"


def _half_broken(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Gangs that keep pods which cannot continue without the evicted ones."""
    gone = {eviction.pod for eviction in decision.evictions}
    groups = {e.group for e in decision.evictions if e.group is not None}
    for key in sorted(groups & state.groups.keys()):
        facts = state.groups[key]
        running = [
            pod
            for pod in state.members[key].values()
            if pod.holds_resources and not pod.is_terminating
        ]
        done = [pod for pod in state.members[key].values() if pod.phase == "Succeeded"]
        stay = [pod for pod in running if pod.key not in gone]
        if facts.evicted is EvictionMode.ALL and stay:
            yield f"{key} is evicted as a whole, but {len(stay)} of its pods stay"
        if facts.evicted is not EvictionMode.MINIMUM:
            continue
        if not stay or not _whole(facts.min_member, facts.min_task_member, [*running, *done]):
            continue
        if not _whole(facts.min_member, facts.min_task_member, [*stay, *done]):
            yield f"{key} is broken, but {len(stay)} of its pods stay"


def _whole(
    minimum: int, minimum_of_roles: tuple[tuple[str, int], ...], pods: Sequence[PodInfo]
) -> bool:
    roles = Counter(pod.role for pod in pods)
    return len(pods) >= minimum and all(roles[role] >= n for role, n in minimum_of_roles)


def _useless_evictions(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Reservations of preemptors that would not fit even after the evictions."""
    free: dict[str, Counter[str]] = {
        str(node.name): Counter(dict(node.allocatable))
        for node in state.nodes.infos
        if node is not None
    }
    gone = {eviction.pod for eviction in decision.evictions}
    for pod in state.pods.values():
        stays = pod.holds_resources and not pod.is_terminating and pod.key not in gone
        if stays and str(pod.node) in free:
            free[str(pod.node)].subtract(dict(pod.shape.request))
    for binding in decision.bindings:
        free[str(binding.node)].subtract(dict(state.pods[binding.pod].shape.request))
    for name in {eviction.beneficiary for eviction in decision.evictions}:
        promise = decision.reservations.get(name)
        if promise is None:
            yield f"pods are evicted for {name}, and it has no reservation"
            continue
        for pod_key, node in promise.nodes:
            request = dict(state.pods[pod_key].shape.request)
            left = free[str(node)]
            left.subtract(request)
            # Nodes have host ports without reporting them.
            asked = [resource for resource, amount in request.items() if amount]
            if any(left[name] + _port_capacity(name) < 0 for name in asked):
                yield f"pods are evicted for {name}, and {pod_key} does not fit on {node} even so"


def _unjustified_evictions(
    state: SchedulerCache,
    books: QueueOracle,
    decision: CycleResult,
    name: str,
    evictions: Sequence[PodEviction],
) -> Iterator[str]:
    """Evictions that neither priority nor the share of a queue justifies."""
    group = state.groups.get(GroupKey(name))
    waiting = (
        [pod for pod in state.members[group.key].values() if pod.is_pending]
        if group is not None
        else [state.pods[PodKey(name.removesuffix("/pod"))]]
    )
    if not all(pod.may_preempt for pod in waiting):
        yield f"pods are evicted for {name}, which may not preempt"
    priority = group.priority if group is not None else waiting[0].priority
    queue = queue_of(state, waiting[0])
    assert queue is not None
    for eviction in evictions:
        pod = state.pods[eviction.pod]
        other = queue_of(state, pod)
        victim = state.groups.get(pod.group) if pod.group is not None else None
        if other == queue:
            has = victim.priority if victim is not None else pod.priority
            if has >= priority:
                yield f"{pod.key} is evicted for {name}, which has no higher priority"
        elif other is None or other not in books.figures:
            yield f"{pod.key} is evicted, and is charged to no queue"
        else:
            yield from _unowed_reclaims(state, books, decision, (name, queue), (pod, other))


def _unowed_reclaims(
    state: SchedulerCache,
    books: QueueOracle,
    decision: CycleResult,
    claimer: tuple[str, str],
    victim: tuple[PodInfo, str],
) -> Iterator[str]:
    """Reclaims beyond the fair share of one queue, or from a queue within its fair share."""
    (name, queue), (pod, other) = claimer, victim
    shared = set(books.path(queue)) & set(books.path(other))
    asked = {n for n, amount in pod.shape.request if amount} - {"pods"}
    bound: dict[str, Counter[str]] = defaultdict(Counter)
    for binding in decision.bindings:
        taker = state.pods[binding.pod]
        for each in books.path(queue_of(state, taker) or ""):
            bound[each].update(dict(taker.shape.request))
    for each in books.path(other):
        if each in shared:
            continue
        if each in state.queues and not state.queues[each].reclaimable:
            yield f"{pod.key} is evicted for {name}, and queue {each} is not reclaimable"
        figures = books.figures[each]
        has = {n: figures.used[n] + bound[each][n] for n in asked}
        if all(has[n] <= figures.fair_share.get(n, 0) * (1 + TOLERANCE) for n in asked):
            yield f"{pod.key} is evicted for {name}, and queue {each} is within its fair share"
    for each in books.path(queue):
        figures = books.figures[each]
        if each not in shared and all(
            figures.used[n] >= figures.fair_share.get(n, 0) * (1 - TOLERANCE) for n in asked
        ):
            yield f"{pod.key} is evicted for {name}, and queue {each} has its fair share already"


def _port_capacity(resource: str) -> int:
    return HOST_PORT_CAPACITY if resource.startswith(HOST_PORT_PREFIX) else 0
