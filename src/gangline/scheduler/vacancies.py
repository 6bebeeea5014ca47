"""Reservations for members that are about to be recreated.

Some time passes between the end of a pod and the creation of its successor. If another pod takes
the node in that interval, the complete gang stops. There are two kinds: a running gang that has
lost a member (observed here, reserved for 30 seconds), and a gang that restarts (announced on its
group, with the node of each pod and an expiry).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.scheduler.model import (
    GroupFacts,
    GroupKey,
    NodeName,
    PodFacts,
    PodKey,
    Request,
    Shape,
)
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement
from gangline.scheduler.units import counts_for_its_gang, places_in_force

HELD_S = 30.0
"""Validity of a lost member's reservation: operators recreate pods within seconds, or back off on
purpose.
"""


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A tentative placement for a member that is to be recreated."""

    group: GroupKey
    pod: PodKey
    placement: Placement


def held_places(state: ClusterState, now: float) -> Iterator[HeldPlace]:
    """Yield the reservations of members that do not exist yet, or are pending."""
    for key in sorted(state.vacated.keys() | state.restarting):
        group = state.groups.get(key)
        if group is None:
            continue
        kept = places_in_force(group, now)
        for name, node in kept:
            if (placement := _kept_place(state, group, name, node)) is not None:
                yield HeldPlace(key, name, placement)
        announced = {name for name, _ in kept}
        for pod in _missed(state, group, now):
            if pod.key not in announced and (placement := _place(state, pod)) is not None:
                yield HeldPlace(key, pod.key, placement)


def _kept_place(
    state: ClusterState, group: GroupFacts, name: PodKey, node: NodeName
) -> Placement | None:
    """Return the placement to reserve on ``node`` for the pod of this name, if any."""
    row = state.nodes.rows.get(node)
    if row is None:
        return None
    present = state.members.get(group.key, {}).get(name)
    pod = present or state.former.get(group.key, {}).get(name)
    if pod is None:
        return Placement((), row, state.nodes.demand(_share(group)), absent=1)
    lives = present is not None and present.holds_room
    if lives or pod.phase == "Succeeded" or not _accepts(state, pod.shape, row):
        return None
    return Placement((pod,), row, state.nodes.demand(pod.shape.request))


def _share(group: GroupFacts) -> Request:
    """Estimate the request of an unseen pod: an equal part of the group's minimal resources."""
    size = max(1, group.min_member)
    return tuple((name, -(-amount // size)) for name, amount in group.min_resources)


def _missed(state: ClusterState, group: GroupFacts, now: float) -> list[PodFacts]:
    """Return the members lost lately that no pending pod replaces, as many as the gang lacks."""
    if group.key not in state.vacated:
        return []
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
    if row is None or not _accepts(state, pod.shape, row):
        return None
    return Placement((pod,), row, state.nodes.demand(pod.shape.request))


def _accepts(state: ClusterState, shape: Shape, row: int) -> bool:
    return bool(state.nodes.eligible(shape.constraints).accepts[row])
