"""Pending gangs and single pods, with what each of them still needs.

A single pod is a gang of one. A pending gang holds the pods to place, the minimum that must be
placed together, and an equivalence key: equal keys fail equally in one cycle. What follows from a
group and its members alone is cached until one of them changes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct, structs

from gangline.api.scheduling import DEFAULT_QUEUE, ROOT_QUEUE
from gangline.scheduler import refusals
from gangline.scheduler.model import (
    EPOCH,
    Fence,
    GroupFacts,
    GroupKey,
    NetworkRule,
    NodeName,
    NodeTerm,
    PartRule,
    PodFacts,
    PodKey,
    Request,
    RoleWishes,
    Verdict,
    shape_of,
)
from gangline.scheduler.parts import Part, divide, enough_whole, in_order, lacking
from gangline.scheduler.plugins.task_topology import usual_wishes
from gangline.scheduler.queues import Pool, ancestors, pool_of
from gangline.scheduler.quotas import exceeded, lacking_request, traits_of_lacking
from gangline.scheduler.state import ClusterState
from gangline.scheduler.supplies import needs_supplied, refresh

_DIGITS = re.compile(r"(\d+)")
LONGEST_KEPT_S = 3600.0
"""Longer reservations of previous nodes are ignored: a wrong clock must not take nodes away for
ever.
"""


Order: TypeAlias = tuple[int, bool, float, datetime, str, bool]
"""Sort key within a queue: priority, minimum before extra pods (of these the smallest gang's),
creation time, name (so that the order is total), and gangs before single pods of the same name.
"""


class Unit(Struct, frozen=True, eq=False):
    """Pods that are placed together or not at all, and what they still need.

    Each cycle creates one for every single pending pod: a struct is created in half the time of a
    dataclass.
    """

    name: str
    """``namespace/name`` of the group, or of the pod."""
    waiting: tuple[PodFacts, ...]
    """Pods to place; those that the gang cannot start without come first."""
    priority: int
    created: datetime
    since: datetime = EPOCH
    """Creation time of the oldest pod in ``waiting``."""
    group: GroupKey | None = None
    queue: str = DEFAULT_QUEUE
    missing: int = 1
    """How many pods of ``waiting`` must be placed for any of them to be placed."""
    missing_roles: tuple[tuple[str, int], ...] = ()
    """The same for each role that has a minimum."""
    running: tuple[PodFacts, ...] = ()
    """Members that hold resources already."""
    places: tuple[tuple[PodKey, NodeName], ...] = ()
    """Nodes of its pods before the gang was restarted: the pods are placed there again."""
    asked: tuple[tuple[str, int], ...] = ()
    """Total request of the pods that the gang cannot start without."""
    limit_s: float = 0.0
    """Maximum run time in seconds; 0: unknown."""
    rules: tuple[PartRule, ...] = ()
    """Rules that divide the gang into subgroups."""
    parts: tuple[Part, ...] = ()
    prefix: int = 0
    """Length of the prefix of ``waiting`` that completes enough subgroups."""
    roles: RoleWishes | None = None
    network: NetworkRule | None = None
    related: bool = False
    """True if inter-pod rules apply to some of its pods."""
    likeness: object = None
    """Equivalence key: gangs with equal keys fit equally."""
    needed: int = 0
    """Length of the prefix of ``waiting`` that the gang cannot start without."""
    order: Order = (0, False, 0.0, EPOCH, "", False)
    """Sort key of the scheduling order within a queue."""
    keys: tuple[PodKey, ...] = ()
    """Keys of ``waiting``. Derived from the other fields, like ``needed`` and ``order``."""

    def __post_init__(self) -> None:
        # Computed once: every cycle reads them, and most gangs stay pending for many cycles.
        of_roles = sum([count for _, count in self.missing_roles]) if self.missing_roles else 0
        order = (-self.priority, False, 0.0, self.created, self.name, self.group is None)
        structs.force_setattr(self, "needed", max(self.missing, of_roles, self.prefix))
        structs.force_setattr(self, "order", order)
        structs.force_setattr(self, "keys", tuple([pod.key for pod in self.waiting]))

    @property
    def broken(self) -> bool:
        """True if the gang runs with fewer members than its minimum."""
        return bool(self.running) and self.needed > 0

    @property
    def urgent(self) -> bool:
        """True if the gang lost a member or restarts: it is served before all queues."""
        return self.broken or bool(self.places)

    def satisfied_by(self, placed: Iterable[PodFacts]) -> bool:
        """Return whether the gang may start once ``placed`` have their nodes."""
        if self.rules:
            placed = list(placed)
            if not enough_whole(self.rules, self.parts, placed):
                return False
        if not self.missing_roles:
            return sum(1 for _ in placed) >= self.missing
        roles = Counter(pod.role for pod in placed)
        return roles.total() >= self.missing and all(
            roles[role] >= count for role, count in self.missing_roles
        )


def waiting_units(state: ClusterState, now: float) -> tuple[list[Unit], list[Verdict]]:
    """Return the gangs that can be tried, and the reasons of those that cannot be tried."""
    pool = pool_of(state.queues, DEFAULT_QUEUE)
    refresh(state)
    units = [_single(_prepared(state, pod, pool)) for pod in state.waiting_alone.values()]
    refused: list[Verdict] = []
    inner = {queue.parent for queue in state.queues.values()}
    for key, waiting in state.waiting_members.items():
        match _gang(state, key, waiting, inner):
            case Unit() as unit:
                units.append(_with_places(unit, state, now))
            case Verdict() as verdict:
                refused.append(verdict)
    refused.sort(key=lambda verdict: verdict.group or "")
    return units, refused


def _single(pod: PodFacts) -> Unit:
    return Unit(
        str(pod.key),
        (pod,),
        pod.priority,
        pod.created,
        pod.created,
        asked=pod.shape.request,
        limit_s=pod.limit_s,
        related=pod.shape.constraints.relations is not None,
        likeness=_likeness(pod.shape, pod.role),
    )


def _with_places(unit: Unit, state: ClusterState, now: float) -> Unit:
    group = unit.group
    if group not in state.restarting:
        return unit
    places = places_in_force(state.groups[group], now)
    if not places:
        return unit
    return structs.replace(unit, places=places, likeness=(unit.likeness, unit.name))


def _gang(
    state: ClusterState, key: GroupKey, waiting: Mapping[PodKey, PodFacts], inner: Set[str]
) -> Unit | Verdict:
    group = state.groups.get(key)
    if group is None:
        return refusals.no_such_group(key, waiting.values())
    if (refused := admission(state, group, waiting.values(), inner)) is not None:
        return refused
    known = state.memo.get(key)
    if not isinstance(known, Unit | Verdict):
        ordered = sorted(waiting.values(), key=_task_order)
        pool = pool_of(state.queues, group.queue)
        fenced = [_prepared(state, pod, pool) for pod in ordered]
        known = gang_unit(group, state.members[key].values(), fenced)
        state.memo[key] = known
    return known


def gang_unit(
    group: GroupFacts, members: Iterable[PodFacts], waiting: list[PodFacts]
) -> Unit | Verdict:
    """Return what a gang still needs, or the reason if some of its pods do not exist."""
    settled = [pod for pod in members if counts_for_its_gang(pod)]
    missing = max(0, group.min_member - len(settled))
    roles = missing_roles(group, settled)
    if missing > len(waiting):
        return refusals.too_few_pods(group, len(settled) + len(waiting), waiting)
    there = Counter(pod.role for pod in waiting) if roles else Counter()
    for role, count in roles:
        if there[role] < count:
            return refusals.too_few_of_role(group, role, count - there[role], waiting)
    ordered = _indispensable_first(waiting, missing, dict(roles))
    parts = divide(group.parts, settled, waiting) if group.parts else ()
    if (few := lacking(group.parts, parts)) is not None:
        return refusals.too_few_parts(group, *few, waiting)
    shapes = Counter((pod.shape, pod.role) for pod in waiting)
    near = tuple(sorted({pod.node or "" for pod in settled})) if group.network else ()
    unit = Unit(
        name=str(group.key),
        waiting=ordered,
        priority=group.priority,
        created=group.created,
        since=min((pod.created for pod in waiting), default=group.created),
        group=group.key,
        queue=group.queue,
        missing=missing,
        missing_roles=roles,
        running=tuple(pod for pod in settled if pod.holds_room),
        limit_s=_limit(waiting, group),
        related=any(shape.constraints.relations is not None for shape, _ in shapes),
        roles=group.roles or usual_wishes(frozenset(role for _, role in shapes)),
        network=group.network,
        asked=_total(ordered[: max(missing, sum(count for _, count in roles))]),
        likeness=_likeness(
            frozenset(shapes.items()), missing, roles, group.roles, group.network, near
        ),
    )
    if group.parts:
        unit = _in_parts(unit, group.parts, parts)
        unit = structs.replace(unit, asked=_total(unit.waiting[: unit.needed]))
    return unit


def _in_parts(unit: Unit, rules: tuple[PartRule, ...], parts: tuple[Part, ...]) -> Unit:
    waiting = in_order(parts, unit.waiting)
    divided = structs.replace(
        unit, waiting=waiting, rules=rules, parts=parts, likeness=(unit.likeness, unit.name)
    )
    ends = [0]
    for part in sorted(parts, key=lambda part: len(part.waiting) < part.missing):
        ends.append(ends[-1] + len(part.waiting))
    ends += range(ends[-1] + 1, len(waiting) + 1)
    prefix = next((end for end in ends if divided.satisfied_by(waiting[:end])), len(waiting))
    return structs.replace(divided, prefix=prefix)


def _prepared(state: ClusterState, pod: PodFacts, pool: Pool) -> PodFacts:
    pod = kept_to_nodes(pod, *pool)
    if not (pod.claims and state.storage.known):
        return pod
    needs = needs_supplied(state, pod)
    if needs.request:
        request = tuple(sorted((*pod.shape.request, *needs.request)))
        pod = structs.replace(
            pod, shape=shape_of(request, pod.shape.constraints, *pod.shape.images)
        )
    return kept_to_nodes(pod, needs.fences)


def kept_to_nodes(
    pod: PodFacts, fences: tuple[Fence, ...], preferred: tuple[tuple[int, NodeTerm], ...] = ()
) -> PodFacts:
    """Return the pod with additional required and preferred node terms."""
    if not (fences or preferred):
        return pod
    own = pod.shape.constraints
    constraints = replace(
        own, fences=(*own.fences, *fences), preferred=(*own.preferred, *preferred)
    )
    return structs.replace(pod, shape=shape_of(pod.shape.request, constraints, *pod.shape.images))


@lru_cache(maxsize=16_384)
def _likeness(*decisive: object) -> object:
    """Return one object for equal arguments: every cycle looks it up in tables, by identity."""
    return object()


def _limit(pods: Iterable[PodFacts], group: GroupFacts) -> float:
    limits = [pod.limit_s for pod in pods]
    own = max(limits, default=0.0) if all(limits) else 0.0
    return min((limit for limit in (own, group.run_time_s) if limit), default=0.0)


def _total(pods: Iterable[PodFacts]) -> Request:
    """Return the total request of pods; pods of one shape are added in one step."""
    total: dict[str, int] = {}
    for shape, count in Counter(pod.shape for pod in pods).items():
        for name, amount in shape.request:
            total[name] = total.get(name, 0) + amount * count
    return tuple(sorted(total.items()))


def places_in_force(group: GroupFacts, now: float) -> tuple[tuple[PodKey, NodeName], ...]:
    """Return the previous nodes of a gang whose reservation has not expired."""
    places = group.places
    if places is None or not now < places.until <= now + LONGEST_KEPT_S:
        return ()
    return places.nodes


def admission(
    state: ClusterState,
    group: GroupFacts,
    waiting: Iterable[PodFacts] = (),
    inner: Set[str] | None = None,
) -> Verdict | None:
    """Return the reason why the gang's queue or a quota does not admit it; None: it is admitted.

    Args:
        state: the cache.
        group: the group.
        waiting: its pending pods, for the reason.
        inner: names of the queues that have children, if the caller knows them.
    """
    queue = state.queues.get(group.queue)
    if queue is None:
        return refusals.no_such_queue(group, waiting)
    if inner is None:
        inner = {each.parent for each in state.queues.values()}
    if group.queue in inner or group.queue == ROOT_QUEUE:
        return refusals.queue_not_leaf(group, waiting)
    for name in (group.queue, *ancestors(state.queues, group.queue)):
        if not state.queues[name].open:
            return refusals.queue_closed(group, name, waiting)
    if quotas := state.quotas.get(group.key.partition("/")[0]):
        members = state.members.get(group.key, {}).values()
        asked = lacking_request(group, members)
        if figures := exceeded(quotas.values(), asked, traits_of_lacking(group, members)):
            return refusals.over_quota(group, figures, waiting)
    return None


def counts_for_its_gang(pod: PodFacts) -> bool:
    """Return whether a member counts towards minMember: it runs and stays, or has succeeded."""
    return pod.phase == "Succeeded" or (pod.holds_room and not pod.terminating)


def missing_roles(group: GroupFacts, settled: Iterable[PodFacts]) -> tuple[tuple[str, int], ...]:
    """Return the roles below their minimum, with the number of missing members."""
    there = Counter(pod.role for pod in settled)
    return tuple(
        (role, minimum - there[role])
        for role, minimum in group.min_task_member
        if there[role] < minimum
    )


def _indispensable_first(
    waiting: list[PodFacts], missing: int, roles: Mapping[str, int]
) -> tuple[PodFacts, ...]:
    """Return the pods that the roles need, then those that the gang needs, then the rest."""
    if not roles:
        return tuple(waiting)
    required = Counter(roles)
    needed: list[PodFacts] = []
    spare: list[PodFacts] = []
    for pod in waiting:
        if required[pod.role] > 0:
            required[pod.role] -= 1
            needed.append(pod)
        else:
            spare.append(pod)
    rest = max(0, missing - len(needed))
    return (*needed, *spare[:rest], *spare[rest:])


def _task_order(pod: PodFacts) -> tuple[int, list[str | int], str]:
    """Sort key of members: priority, then index (``worker-10`` comes after ``worker-9``)."""
    # Text and digits alternate, so numbers are compared only with numbers.
    parts: list[str | int] = list(_DIGITS.split(pod.key))
    parts[1::2] = map(int, parts[1::2])
    return (-pod.priority, parts, pod.key)
