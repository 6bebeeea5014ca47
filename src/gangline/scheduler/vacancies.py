"""Places that running gangs have lost a member from: held until the member is made anew.

Between a pod's end and the creation of the next one a moment passes. Whoever takes the room in
that moment leaves a whole gang standing still, so it is kept for a while.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.scheduler.model import GroupFacts, PodFacts
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement
from gangline.scheduler.units import counts_for_its_gang

HELD_S = 30.0
"""How long a place is held: operators make pods anew within seconds, or slow down on purpose."""


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """Room on paper for a member that is to come back."""

    group: str
    placement: Placement


def held_places(state: ClusterState, now: float) -> Iterator[HeldPlace]:
    """Return the places to keep for gangs that run without members that do not exist yet."""
    for key in sorted(state.vacated):
        group = state.groups.get(key)
        if group is not None:
            for pod in _missed(state, group, now):
                if (placement := _place(state, pod)) is not None:
                    yield HeldPlace(str(key), placement)


def _missed(state: ClusterState, group: GroupFacts, now: float) -> list[PodFacts]:
    """The members lost lately, as many as the gang lacks and nobody has made anew."""
    members = state.members.get(group.key, {}).values()
    settled = [pod for pod in members if counts_for_its_gang(pod)]
    missing = group.min_member - len(settled)
    if missing <= sum(pod.waits for pod in members) or not any(p.holds_room for p in settled):
        return []
    recent = [lost for lost in state.vacated[group.key] if now - lost.at < HELD_S]
    recent.sort(key=lambda lost: (-lost.at, lost.pod.key))
    return [lost.pod for lost in recent[:missing]]


def _place(state: ClusterState, pod: PodFacts) -> Placement | None:
    row = state.nodes.rows.get(pod.node) if pod.node is not None else None
    if row is None or not state.nodes.eligible(pod.shape.constraints).accepts[row]:
        return None
    return Placement((pod,), row, state.nodes.demand(pod.shape.request))
