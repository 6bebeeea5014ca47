"""What waits, in the order in which it is served: gangs, and pods of their own.

Order: gangs that run and have lost a member, for their other members wait with them, and gangs
that restart as a whole, for they ran a moment ago; then higher priority; then who came first; then
by name, so that the order is total.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gangline.scheduler import reasons
from gangline.scheduler.model import (
    GroupFacts,
    GroupKey,
    NodeName,
    PodFacts,
    PodKey,
    Verdict,
)
from gangline.scheduler.state import ClusterState

LONGEST_KEPT_S = 3600.0
"""Places that are to be kept for longer are not kept: a wrong clock or a slip of the pen must not
take nodes away for ever."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Pods that are placed together or not at all, and what they still need."""

    name: str
    """``namespace/name`` of the group, or of the pod."""
    waiting: tuple[PodFacts, ...]
    """The pods to place, those that the gang cannot do without first."""
    priority: int
    created: datetime
    group: GroupKey | None = None
    missing: int = 1
    """How many of ``waiting`` must be placed for any to be."""
    missing_roles: tuple[tuple[str, int], ...] = ()
    """The same for each role that has a minimum."""
    running: tuple[PodFacts, ...] = ()
    """Members that hold room already."""
    places: tuple[tuple[PodKey, NodeName], ...] = ()
    """Where its pods were before the gang was restarted: there they go back to."""

    @property
    def broken(self) -> bool:
        """It runs with fewer members than it needs."""
        return bool(self.running) and (self.missing > 0 or bool(self.missing_roles))

    @property
    def order(self) -> tuple[bool, int, datetime, str]:
        """The sort key of the order of service."""
        return (not (self.broken or self.places), -self.priority, self.created, self.name)

    @property
    def likeness(self) -> object:
        """What decides whether it fits: units that are alike fail alike."""
        shapes = Counter((pod.shape, pod.role) for pod in self.waiting)
        own = self.name if self.places else ""
        return (frozenset(shapes.items()), self.missing, self.missing_roles, own)

    def satisfied_by(self, placed: Iterable[PodFacts]) -> bool:
        """Say whether the gang may start once ``placed`` have their nodes."""
        roles = Counter(pod.role for pod in placed)
        return roles.total() >= self.missing and all(
            roles[role] >= count for role, count in self.missing_roles
        )


def waiting_units(state: ClusterState, now: float) -> tuple[list[Unit], list[Verdict]]:
    """Return what can be tried, in order, and the verdicts on what cannot even be tried."""
    gangs: dict[GroupKey, list[PodFacts]] = defaultdict(list)
    units: list[Unit] = []
    for pod in state.waiting.values():
        if pod.group is None:
            units.append(_single(pod))
        else:
            gangs[pod.group].append(pod)
    refused: list[Verdict] = []
    for key, waiting in gangs.items():
        waiting.sort(key=_task_order)
        match _gang(state, key, waiting, now):
            case Unit() as unit:
                units.append(unit)
            case Verdict() as verdict:
                refused.append(verdict)
    units.sort(key=lambda unit: unit.order)
    refused.sort(key=lambda verdict: verdict.group or "")
    return units, refused


def _single(pod: PodFacts) -> Unit:
    return Unit(str(pod.key), (pod,), pod.priority, pod.created)


def _gang(
    state: ClusterState, key: GroupKey, waiting: list[PodFacts], now: float
) -> Unit | Verdict:
    """Return the gang's unit, or why it cannot be tried."""
    group = state.groups.get(key)
    if group is None:
        return reasons.no_such_group(key, waiting)
    if (refused := admission(state, group, waiting)) is not None:
        return refused
    members = state.members[key].values()
    settled = [pod for pod in members if counts_for_its_gang(pod)]
    missing = max(0, group.min_member - len(settled))
    roles = missing_roles(group, settled)
    if missing > len(waiting):
        return reasons.too_few_pods(group, len(settled) + len(waiting), waiting)
    there = Counter(pod.role for pod in waiting)
    for role, count in roles:
        if there[role] < count:
            return reasons.too_few_of_role(group, role, count - there[role], waiting)
    return Unit(
        name=str(key),
        waiting=_indispensable_first(waiting, missing, dict(roles)),
        priority=group.priority,
        created=group.created,
        group=key,
        missing=missing,
        missing_roles=roles,
        running=tuple(pod for pod in settled if pod.holds_room),
        places=places_in_force(group, now),
    )


def places_in_force(group: GroupFacts, now: float) -> tuple[tuple[PodKey, NodeName], ...]:
    """Return the places that are kept for a gang now."""
    places = group.places
    if places is None or not now < places.until <= now + LONGEST_KEPT_S:
        return ()
    return places.nodes


def admission(
    state: ClusterState, group: GroupFacts, waiting: Iterable[PodFacts] = ()
) -> Verdict | None:
    """Return why the group's queue does not let it in; None: it does."""
    queue = state.queues.get(group.queue)
    if queue is None:
        return reasons.no_such_queue(group, waiting)
    return None if queue.open else reasons.queue_closed(group, waiting)


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


def _task_order(pod: PodFacts) -> tuple[object, ...]:
    """By priority, then by index."""
    return (-pod.priority, natural(pod.key))


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key in which ``worker-10`` comes after ``worker-9``."""
    parts = re.split(r"(\d+)", name)
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part
    )
