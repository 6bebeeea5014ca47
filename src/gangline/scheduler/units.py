"""What waits: gangs, and pods of their own, with what each of them still needs."""

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
"""Places that are to be kept for longer are not kept: a wrong clock or a slip of the pen must not
take nodes away for ever."""


Order: TypeAlias = tuple[int, bool, float, datetime, str, bool]
"""By priority; minimums before pods beyond them, of these the smallest gang's; who came first; the
name, so that the order is total; gangs before single pods of one name."""


class Unit(Struct, frozen=True, eq=False):
    """Pods that are placed together or not at all, and what they still need.

    Each decision makes one of every pod that waits by itself: structs are made in half the time.
    """

    name: str
    """``namespace/name`` of the group, or of the pod."""
    waiting: tuple[PodFacts, ...]
    """The pods to place, those that the gang cannot do without first."""
    priority: int
    created: datetime
    since: datetime = EPOCH
    """When the first of ``waiting`` was made."""
    group: GroupKey | None = None
    queue: str = DEFAULT_QUEUE
    missing: int = 1
    """How many of ``waiting`` must be placed for any to be."""
    missing_roles: tuple[tuple[str, int], ...] = ()
    """The same for each role that has a minimum."""
    running: tuple[PodFacts, ...] = ()
    """Members that hold room already."""
    places: tuple[tuple[PodKey, NodeName], ...] = ()
    """Where its pods were before the gang was restarted: there they go back to."""
    asked: tuple[tuple[str, int], ...] = ()
    """What the pods that it needs ask for together."""
    limit_s: float = 0.0
    """How long it runs at most; nothing: nobody knows."""
    rules: tuple[PartRule, ...] = ()
    """What makes small gangs within it."""
    parts: tuple[Part, ...] = ()
    """These small gangs."""
    prefix: int = 0
    """How many of ``waiting``, from the front, make enough small gangs whole."""
    roles: RoleWishes | None = None
    network: NetworkRule | None = None
    related: bool = False
    """It makes a difference to some of its pods where others are."""
    likeness: object = None
    """What decides whether it fits: units that are alike fail alike."""
    needed: int = 0
    """How many of ``waiting``, from the front, it cannot do without."""
    order: Order = (0, False, 0.0, EPOCH, "", False)
    """The sort key of the order of service within a queue."""
    keys: tuple[PodKey, ...] = ()
    """The names of ``waiting``; like the two before it, it follows from the others."""

    def __post_init__(self) -> None:
        # Worked out once: every decision asks for them, and most units wait through many.
        of_roles = sum([count for _, count in self.missing_roles]) if self.missing_roles else 0
        order = (-self.priority, False, 0.0, self.created, self.name, self.group is None)
        structs.force_setattr(self, "needed", max(self.missing, of_roles, self.prefix))
        structs.force_setattr(self, "order", order)
        structs.force_setattr(self, "keys", tuple([pod.key for pod in self.waiting]))

    @property
    def broken(self) -> bool:
        """It runs with fewer members than it needs."""
        return bool(self.running) and self.needed > 0

    @property
    def urgent(self) -> bool:
        """It ran a moment ago, and others of it wait already: it goes before everybody."""
        return self.broken or bool(self.places)

    def satisfied_by(self, placed: Iterable[PodFacts]) -> bool:
        """Say whether the gang may start once ``placed`` have their nodes."""
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
    """Return what can be tried, and the verdicts on what cannot even be tried."""
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
    """Return the gang's unit, or why it cannot be tried."""
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
    """Work out what a gang needs, or which of its pods do not exist."""
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
    """Return the unit with its pods ordered by small gangs, as many in front as it needs."""
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
    """Return a pod with what its queue and its claims ask of its node."""
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
    """Return the pod with further nodes that it is kept to, or would like."""
    if not (fences or preferred):
        return pod
    own = pod.shape.constraints
    constraints = replace(
        own, fences=(*own.fences, *fences), preferred=(*own.preferred, *preferred)
    )
    return structs.replace(pod, shape=shape_of(pod.shape.request, constraints, *pod.shape.images))


@lru_cache(maxsize=16_384)
def _likeness(*decisive: object) -> object:
    """Return one object for equal arguments: it is found in tables, in every decision, at once."""
    return object()


def _limit(pods: Iterable[PodFacts], group: GroupFacts) -> float:
    """How long pods run at most, by their own limits or what their group says."""
    limits = [pod.limit_s for pod in pods]
    own = max(limits, default=0.0) if all(limits) else 0.0
    return min((limit for limit in (own, group.run_time_s) if limit), default=0.0)


def _total(pods: Iterable[PodFacts]) -> Request:
    """Add up what pods ask for, those that are alike at once."""
    total: dict[str, int] = {}
    for shape, count in Counter(pod.shape for pod in pods).items():
        for name, amount in shape.request:
            total[name] = total.get(name, 0) + amount * count
    return tuple(sorted(total.items()))


def places_in_force(group: GroupFacts, now: float) -> tuple[tuple[PodKey, NodeName], ...]:
    """Return the places that are kept for a gang now."""
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
    """Return why the group's queue does not let it in; None: it does.

    Args:
        state: what is observed.
        group: the group.
        waiting: its pods, for the verdict.
        inner: the queues that have others below them, where the caller knows them.
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
    """A member counts towards its gang while it holds room and stays, and once it succeeded."""
    return pod.phase == "Succeeded" or (pod.holds_room and not pod.terminating)


def missing_roles(group: GroupFacts, settled: Iterable[PodFacts]) -> tuple[tuple[str, int], ...]:
    """Return the roles that have fewer settled members than their minimum, and how many fewer."""
    there = Counter(pod.role for pod in settled)
    return tuple(
        (role, minimum - there[role])
        for role, minimum in group.min_task_member
        if there[role] < minimum
    )


def _indispensable_first(
    waiting: list[PodFacts], missing: int, roles: Mapping[str, int]
) -> tuple[PodFacts, ...]:
    """Bring to the front what the roles need, and then what the gang needs."""
    if not roles:
        return tuple(waiting)
    wanted = Counter(roles)
    needed: list[PodFacts] = []
    spare: list[PodFacts] = []
    for pod in waiting:
        if wanted[pod.role] > 0:
            wanted[pod.role] -= 1
            needed.append(pod)
        else:
            spare.append(pod)
    rest = max(0, missing - len(needed))
    return (*needed, *spare[:rest], *spare[rest:])


def _task_order(pod: PodFacts) -> tuple[int, list[str | int], str]:
    """By priority, then by index: ``worker-10`` comes after ``worker-9``."""
    # Text and digits take turns, so that numbers are only ever compared with numbers.
    parts: list[str | int] = list(_DIGITS.split(pod.key))
    parts[1::2] = map(int, parts[1::2])
    return (-pod.priority, parts, pod.key)
