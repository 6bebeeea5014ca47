"""Explains one gang or pod: repeats the cycle and lists what its result depends on.

The cycle is the scheduler's own, on the same values. Its message is complemented by the amounts of
the queues, the requests of the pods, and each node with the reason why it accepts or refuses them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gangline.api.scheduling import ROOT_QUEUE
from gangline.scheduler import reasons, related
from gangline.scheduler.decide import ANY_EVICTION, decide
from gangline.scheduler.ledger import NOBODY
from gangline.scheduler.model import Decision, GroupKey, NodeName, PodFacts, PodKey, Shape
from gangline.scheduler.place import by_shape
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.shares import Vector
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Trial
from gangline.scheduler.units import waiting_units
from gangline.scheduler.victims import Policy

ROOM = "has enough free resources"
KEPT = "has enough free resources, reserved for others"

WAITS, STARTS, PLACED, NOT_OURS, GATED, ENDED, EMPTY = (
    "waits",
    "gets its nodes now",
    "has its nodes",
    "is for another scheduler",
    "is held back by scheduling gates",
    "has ended",
    "has no pods",
)


@dataclass(frozen=True, slots=True)
class NodesAlike:
    """Nodes with the same reason for a pod."""

    why: str
    nodes: tuple[str, ...]
    most_free: str = ""
    """The largest free amounts of the requested resources on one of these nodes."""


@dataclass(frozen=True, slots=True)
class Need:
    """Pending pods of one role and shape, and the nodes by reason."""

    role: str
    pods: tuple[str, ...]
    asked: str
    nodes: tuple[NodesAlike, ...]


@dataclass(frozen=True, slots=True)
class QueueUse:
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
    """``PodGroup`` or ``Pod``."""
    name: str
    """``namespace/name``."""
    state: str
    reason: str = ""
    message: str = ""
    queues: tuple[QueueUse, ...] = ()
    """Its queue, followed by the ancestors."""
    minimum: int = 1
    """Number of its pods that must run together."""
    placed: Mapping[str, str] = field(default_factory=dict)
    """Nodes of its placed pods."""
    starting: Mapping[str, str] = field(default_factory=dict)
    """Nodes that its pods get in this cycle."""
    planned: Mapping[str, str] = field(default_factory=dict)
    """Reserved nodes of its pods."""
    needs: tuple[Need, ...] = ()
    evicted_for_it: tuple[str, ...] = ()


def explain_group(
    state: ClusterState, key: GroupKey, now: float, policy: Policy = ANY_EVICTION
) -> Explanation:
    members = list(state.members.get(key, {}).values())
    facts = state.groups.get(key)
    queue = facts.queue if facts is not None else NOBODY
    minimum = facts.min_member if facts is not None else 0
    return _explain(state, "PodGroup", str(key), members, queue, minimum, now, policy)


def explain_pod(
    state: ClusterState, key: PodKey, now: float, policy: Policy = ANY_EVICTION
) -> Explanation:
    """Explain a pod without a group.

    Raises:
        KeyError: the pod does not exist.
    """
    pod = state.pods[key]
    queue = state.running.queue_of(None)
    return _explain(state, "Pod", str(key), [pod], queue, 1, now, policy)


def _explain(  # noqa: PLR0913, PLR0917 - identity and context
    state: ClusterState,
    kind: str,
    name: str,
    members: Sequence[PodFacts],
    queue: str,
    minimum: int,
    now: float,
    policy: Policy,
) -> Explanation:
    decision = decide(state, now, policy)
    units, _ = waiting_units(state, now)
    prepared = {pod.key: pod for unit in units for pod in unit.waiting}
    waiting = [prepared.get(pod.key, pod) for pod in members if pod.waits]
    own = {pod.key for pod in waiting}
    starting = {str(b.pod): str(b.node) for b in decision.bindings if b.pod in own}
    promise = decision.promises.get(name)
    reason, message = _told(decision, name, own)
    left = [pod for pod in waiting if pod.key not in starting]
    return Explanation(
        kind=kind,
        name=name,
        state=_standing(members, left, starting),
        reason=reason,
        message=message,
        queues=queue_uses(state, queue),
        minimum=minimum,
        placed={str(pod.key): str(pod.node) for pod in members if pod.holds_room},
        starting=starting,
        planned={str(pod): str(node) for pod, node in promise.places} if promise else {},
        needs=_needs(state, left, _kept(state, decision, name)),
        evicted_for_it=tuple(str(e.pod) for e in decision.evictions if e.beneficiary == name),
    )


def _standing(
    members: Sequence[PodFacts], left: Sequence[PodFacts], starting: Mapping[str, str]
) -> str:
    if left:
        return WAITS
    if starting:
        return STARTS
    open_ended = [pod for pod in members if not (pod.finished or pod.terminating)]
    if not members:
        return EMPTY
    if not open_ended:
        return ENDED
    if all(pod.node for pod in open_ended):
        return PLACED
    return GATED if any(pod.gated for pod in open_ended) else NOT_OURS


def _told(decision: Decision, name: str, own: set[PodKey]) -> tuple[str, str]:
    """Return reason and message of a gang, or those of one of its pods."""
    for verdict in decision.verdicts:
        if verdict.group == name and verdict.message:
            return verdict.reason, verdict.message
    for verdict in decision.verdicts:
        for pod, text in verdict.pods:
            if pod in own:
                return verdict.reason, text
    return "", ""


def queue_uses(state: ClusterState, queue: str) -> tuple[QueueUse, ...]:
    """Return the amounts of a queue and its ancestors; empty if the queue does not exist."""
    tree = QueueTree(state.queues, state.nodes, state.running, state.requested, state.obtainable())
    account = tree.accounts.get(queue)
    if account is None or queue == ROOT_QUEUE:
        return ()
    return tuple(
        QueueUse(
            name=each.facts.name,
            used=_amounts(tree, each.used),
            requested=_amounts(tree, each.requested),
            entitled=_amounts(tree, each.entitled),
            most=_amounts(tree, each.ceiling) if each.limited else "",
            share=round(min(each.share, 1e9), 3),
        )
        for each in account.path()
    )


def _amounts(tree: QueueTree, vector: Vector) -> str:
    return reasons.amounts_text(
        {name: int(vector[c]) for name, c in tree.columns.items() if vector[c] < float("inf")}
    )


def _kept(state: ClusterState, decision: Decision, name: str) -> Trial:
    """Return the free amounts after this cycle's bindings and the reservations of other gangs."""
    trial = Trial(state.nodes)
    given = [(binding.pod, binding.node) for binding in decision.bindings]
    for other, promise in decision.promises.items():
        given += promise.places if other != name else ()
    for key, node in given:
        row, pod = state.nodes.rows.get(node), state.pods.get(key)
        if row is not None and pod is not None:
            trial.spend(pod, row)
    return trial


def _needs(state: ClusterState, waiting: Iterable[PodFacts], kept: Trial) -> tuple[Need, ...]:
    by_role: dict[tuple[str, Shape], list[PodFacts]] = {}
    for shape, alike in by_shape(waiting).items():
        for pod in alike:
            by_role.setdefault((pod.role, shape), []).append(pod)
    standing = Trial(state.nodes)
    return tuple(
        Need(
            role=role,
            pods=tuple(str(pod.key) for pod in pods),
            asked=reasons.amounts_text(dict(shape.request)),
            nodes=tuple(_nodes(state, pods[0], standing, kept)),
        )
        for (role, shape), pods in sorted(by_role.items(), key=lambda item: item[1][0].key)
    )


def _nodes(
    state: ClusterState, pod: PodFacts, standing: Trial, kept: Trial
) -> Iterable[NodesAlike]:
    """Group the nodes by the reason that excludes a pod; accepting nodes come first."""
    nodes = state.nodes
    eligible = nodes.eligible(pod.shape.constraints)
    apart = related.reasons_by_row(nodes, pod) if related.is_related(nodes, pod) else {}
    alike: dict[str, list[NodeName]] = defaultdict(list)
    for name, row in nodes.rows.items():
        why = eligible.refusals[row] or apart.get(row, "")
        why = why or ", ".join(reasons.shortage(one) for one in standing.lacking(pod.shape, row))
        alike[why or (KEPT if kept.lacking(pod.shape, row) else ROOM)].append(name)
    order = {ROOM: 0, KEPT: 1}
    for why in sorted(alike, key=lambda why: (order.get(why, 2), -len(alike[why]), why)):
        yield NodesAlike(why, tuple(sorted(alike[why])), _most_free(standing, pod, alike[why]))


def _most_free(trial: Trial, pod: PodFacts, names: Iterable[NodeName]) -> str:
    nodes = trial.nodes
    rows = [nodes.rows[name] for name in names]
    return reasons.amounts_text(
        {
            resource: max(0, int(trial.free[nodes.columns[resource], rows].max(initial=0)))
            for resource, _ in pod.shape.request
            if resource in nodes.columns
        }
    )
