"""Explains one gang or pod: repeats the cycle and lists what its result depends on.

The cycle is the scheduler's own, on the same values. Its message is complemented by the amounts of
the queues, the requests of the pods, and each node with the reason why it accepts or refuses them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.api.cluster.workload import GROUP
from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.cache import inter_pod
from gangline.scheduler.cache.cache import NO_QUEUE, SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY, run_cycle
from gangline.scheduler.forecast import ExpectedStart, expected_start
from gangline.scheduler.placement.gang import group_by_shape
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree, Vector
from gangline.scheduler.types import (
    CycleResult,
    GangId,
    GroupKey,
    NodeName,
    PodInfo,
    PodKey,
    PodShape,
    gang_name,
    is_kubernetes_group,
    kubernetes_group_key,
    single_pod_id,
)

KUBERNETES_POD_GROUP = f"PodGroup.{GROUP}"
HAS_CAPACITY = "has enough free resources"
CAPACITY_RESERVED = "has enough free resources, reserved for others"

WAITS, STARTS, RUNS_PARTLY, PLACED, NOT_OURS, GATED, ENDED, EMPTY = (
    "waits",
    "gets its nodes now",
    "runs, and some of its extra pods wait",
    "has its nodes",
    "is for another scheduler",
    "is held back by scheduling gates",
    "has ended",
    "has no pods",
)


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes with the same reason for a pod."""

    why: str
    nodes: tuple[str, ...]
    most_free: str = ""
    """The largest free amounts of the requested resources on one of these nodes."""


@dataclass(frozen=True, slots=True)
class PodRequirement:
    """Pending pods of one role and shape, and the nodes by reason."""

    role: str
    pods: tuple[str, ...]
    asked: str
    nodes: tuple[NodeClass, ...]


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """The amounts of a queue."""

    name: str
    used: str
    requested: str
    """Usage and pending requests."""
    entitled: str
    most: str
    """Its limit; empty: none."""
    share: float
    """Used fraction of its fair share."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one gang or pod."""

    kind: str
    """``PodGroup``, ``PodGroup.scheduling.k8s.io`` or ``Pod``."""
    name: str
    """``namespace/name``."""
    state: str
    reason: str = ""
    message: str = ""
    queues: tuple[QueueUsage, ...] = ()
    """Its queue, followed by the ancestors."""
    minimum: int = 1
    """Number of its pods that must run together."""
    placed: Mapping[str, str] = field(default_factory=dict)
    """Nodes of its placed pods."""
    starting: Mapping[str, str] = field(default_factory=dict)
    """Nodes that its pods get in this cycle."""
    planned: Mapping[str, str] = field(default_factory=dict)
    """Reserved nodes of its pods."""
    needs: tuple[PodRequirement, ...] = ()
    evicted_for_it: tuple[str, ...] = ()
    expected: ExpectedStart | None = None
    """When it is expected to start, if that was asked for."""


def explain_group(
    state: SchedulerCache, key: GroupKey, now: float, policy: EvictionPolicy = DEFAULT_POLICY
) -> Explanation:
    members = list(state.members.get(key, {}).values())
    facts = state.groups.get(key)
    queue = facts.queue if facts is not None else NO_QUEUE
    minimum = facts.min_member if facts is not None else 0
    kind = KUBERNETES_POD_GROUP if is_kubernetes_group(key) else "PodGroup"
    return _explain(state, kind, gang_name(GangId(key)), members, queue, minimum, now, policy)


def explain_pod(
    state: SchedulerCache, key: PodKey, now: float, policy: EvictionPolicy = DEFAULT_POLICY
) -> Explanation:
    """Explain a pod without a group.

    Raises:
        KeyError: the pod does not exist.
    """
    pod = state.pods[key]
    queue = state.usage.queue_of(None)
    return _explain(state, "Pod", str(key), [pod], queue, 1, now, policy)


def with_expected_start(
    explained: Explanation, state: SchedulerCache, now: float, policy: EvictionPolicy
) -> Explanation:
    """Return an explanation with the expected start, if the gang is pending."""
    if explained.state != WAITS:
        return explained
    gang = _gang_id(explained.kind, explained.name)
    return replace(explained, expected=expected_start(state, gang, now, policy))


def _explain(  # noqa: PLR0913, PLR0917 - identity and context
    state: SchedulerCache,
    kind: str,
    name: str,
    members: Sequence[PodInfo],
    queue: str,
    minimum: int,
    now: float,
    policy: EvictionPolicy,
) -> Explanation:
    decision = run_cycle(state, now, policy)
    units, _ = pending_gangs(state, now)
    prepared = {pod.key: pod for unit in units for pod in unit.pending}
    waiting = [prepared.get(pod.key, pod) for pod in members if pod.is_pending]
    own = {pod.key for pod in waiting}
    starting = {str(b.pod): str(b.node) for b in decision.bindings if b.pod in own}
    gang = _gang_id(kind, name)
    reservation = decision.reservations.get(gang)
    reason, message = _pending_reason_of(decision, gang, own)
    left = [pod for pod in waiting if pod.key not in starting]
    return Explanation(
        kind=kind,
        name=name,
        state=_gang_state(members, left, starting, minimum),
        reason=reason,
        message=message,
        queues=queue_usages(state, queue),
        minimum=minimum,
        placed={str(pod.key): str(pod.node) for pod in members if pod.holds_resources},
        starting=starting,
        planned={str(pod): str(node) for pod, node in reservation.nodes} if reservation else {},
        needs=_needs(state, left, _remaining_allocation(state, decision, gang)),
        evicted_for_it=tuple(str(e.pod) for e in decision.evictions if e.beneficiary == gang),
    )


def _gang_state(
    members: Sequence[PodInfo],
    left: Sequence[PodInfo],
    starting: Mapping[str, str],
    minimum: int,
) -> str:
    """Return what the gang does; of an elastic one, the pods beyond the minimum may wait."""
    running = sum(pod.holds_resources and not pod.is_terminating for pod in members)
    has_minimum = running + len(starting) >= max(1, minimum)
    if left and not has_minimum:
        return WAITS
    if starting and running < minimum:
        return STARTS
    if left:
        return RUNS_PARTLY
    if starting:
        return STARTS
    open_ended = [pod for pod in members if not (pod.is_finished or pod.is_terminating)]
    if not members:
        return EMPTY
    if not open_ended:
        return ENDED
    if all(pod.node for pod in open_ended):
        return PLACED
    return GATED if any(pod.is_gated for pod in open_ended) else NOT_OURS


def _gang_id(kind: str, name: str) -> GangId:
    if kind == KUBERNETES_POD_GROUP:
        return GangId(kubernetes_group_key(*name.split("/")))
    return single_pod_id(name) if kind == "Pod" else GangId(name)


def _pending_reason_of(decision: CycleResult, gang: GangId, own: set[PodKey]) -> tuple[str, str]:
    """Return reason and message of a gang, or those of one of its pods."""
    for verdict in decision.pending_reasons:
        # No group has the identity of a single pod.
        if verdict.message and verdict.group is not None and GangId(verdict.group) == gang:
            return verdict.reason, verdict.message
    for verdict in decision.pending_reasons:
        for pod, text in verdict.pods:
            if pod in own:
                return verdict.reason, text
    return "", ""


def queue_usages(state: SchedulerCache, queue: str) -> tuple[QueueUsage, ...]:
    """Return the amounts of a queue and its ancestors; empty if the queue does not exist."""
    tree = QueueTree.of(state)
    attributes = tree.queues.get(queue)
    if attributes is None or queue == ROOT_QUEUE:
        return ()
    return tuple(_queue_usage(tree, above) for above in attributes.path())


def all_queue_usages(state: SchedulerCache) -> dict[str, QueueUsage]:
    """Return the amounts of every queue by its name, without those of the root."""
    tree = QueueTree.of(state)
    return {
        name: _queue_usage(tree, attributes)
        for name, attributes in tree.queues.items()
        if name != ROOT_QUEUE
    }


def _queue_usage(tree: QueueTree, queue: QueueAttributes) -> QueueUsage:
    return QueueUsage(
        name=queue.info.name,
        used=_amounts(tree, queue.used),
        requested=_amounts(tree, queue.requested),
        entitled=_amounts(tree, queue.fair_share),
        most=_amounts(tree, queue.limit) if queue.has_limit else "",
        share=round(min(queue.share, 1e9), 3),
    )


def _amounts(tree: QueueTree, vector: Vector) -> str:
    return messages.amounts_text(
        {name: int(vector[c]) for name, c in tree.columns.items() if vector[c] < float("inf")}
    )


def _remaining_allocation(
    state: SchedulerCache, decision: CycleResult, gang: GangId
) -> ScratchAllocation:
    """Return the free amounts after this cycle's bindings and the reservations of other gangs."""
    scratch = ScratchAllocation(state.nodes)
    given = [(binding.pod, binding.node) for binding in decision.bindings]
    for other, reservation in decision.reservations.items():
        given += reservation.nodes if other != gang else ()
    for key, node in given:
        row, pod = state.nodes.rows.get(node), state.pods.get(key)
        if row is not None and pod is not None:
            scratch.charge_pod(pod, row)
    return scratch


def _needs(
    state: SchedulerCache, waiting: Iterable[PodInfo], remaining: ScratchAllocation
) -> tuple[PodRequirement, ...]:
    by_role: dict[tuple[str, PodShape], list[PodInfo]] = {}
    for shape, same_reason in group_by_shape(waiting).items():
        for pod in same_reason:
            by_role.setdefault((pod.role, shape), []).append(pod)
    initial = ScratchAllocation(state.nodes)
    return tuple(
        PodRequirement(
            role=role,
            pods=tuple(str(pod.key) for pod in pods),
            asked=messages.amounts_text(dict(shape.request)),
            nodes=tuple(_nodes(state, pods[0], initial, remaining)),
        )
        for (role, shape), pods in sorted(by_role.items(), key=lambda item: item[1][0].key)
    )


def _nodes(
    state: SchedulerCache, pod: PodInfo, initial: ScratchAllocation, remaining: ScratchAllocation
) -> Iterable[NodeClass]:
    """Group the nodes by the reason that excludes a pod; accepting nodes come first."""
    nodes = state.nodes
    eligible = nodes.eligible(pod.shape.constraints)
    apart = (
        inter_pod.inter_pod_messages_by_row(nodes, pod)
        if inter_pod.has_inter_pod_rules(nodes, pod)
        else {}
    )
    same_reason: dict[str, list[NodeName]] = defaultdict(list)
    for name, row in nodes.rows.items():
        why = eligible.messages[row] or apart.get(row, "")
        why = why or ", ".join(
            messages.shortage_message(one) for one in initial.lacking_resources(pod.shape, row)
        )
        why = why or initial.claims_refusal((pod,), row)
        is_reserved = remaining.lacking_resources(pod.shape, row) or remaining.claims_refusal(
            (pod,), row
        )
        same_reason[why or (CAPACITY_RESERVED if is_reserved else HAS_CAPACITY)].append(name)
    order = {HAS_CAPACITY: 0, CAPACITY_RESERVED: 1}
    for why in sorted(
        same_reason, key=lambda why: (order.get(why, 2), -len(same_reason[why]), why)
    ):
        yield NodeClass(
            why, tuple(sorted(same_reason[why])), _max_free(initial, pod, same_reason[why])
        )


def _max_free(scratch: ScratchAllocation, pod: PodInfo, names: Iterable[NodeName]) -> str:
    nodes = scratch.nodes
    rows = [nodes.rows[name] for name in names]
    return messages.amounts_text(
        {
            resource: max(0, int(scratch.free[nodes.columns[resource], rows].max(initial=0)))
            for resource, _ in pod.shape.request
            if resource in nodes.columns
        }
    )
