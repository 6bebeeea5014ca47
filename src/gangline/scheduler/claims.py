"""Reservations for preemptors: resources freed by an eviction stay reserved for the gang that
caused it.

They are valid for at most 10 minutes, and only while the gang still fits there once all terminating
pods have ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.scheduler.place import placed_pods
from gangline.scheduler.state import SchedulerCache
from gangline.scheduler.trial import Placement, ScratchAllocation
from gangline.scheduler.units import PendingGang

PREEMPTOR_RESERVATION_S = 600.0
"""Validity of a preemptor's reservation: longer than the grace period of evicted pods."""


@dataclass(frozen=True, slots=True)
class PreemptorReservations:
    """Valid reservations of preemptors, by the name of the gang."""

    placements: Mapping[str, list[Placement]]
    state: SchedulerCache

    def with_reserved_nodes(self, unit: PendingGang) -> PendingGang:
        """Return the gang with its reserved nodes as previous nodes, if it has any."""
        if unit.name not in self.placements:
            return unit
        places = self.state.reservations[unit.name].nodes
        return replace(
            unit, previous_nodes=places, equivalence_key=(unit.equivalence_key, unit.name)
        )


def valid_reservations(
    state: SchedulerCache, units: Iterable[PendingGang], now: float
) -> PreemptorReservations:
    """Return the reservations that gangs can use once the evicted pods have ended."""
    claiming = {
        name: promise
        for name, promise in state.reservations.items()
        if promise.preempting and now - promise.created_at < PREEMPTOR_RESERVATION_S
    }
    if not claiming:
        return PreemptorReservations({}, state)
    nodes = {node for promise in claiming.values() for _, node in promise.nodes}
    trial = ScratchAllocation(state.nodes)
    for node in nodes:
        row = state.nodes.rows.get(node)
        if row is not None:
            leaving = [pod for pod in state.pods_on(node) if pod.is_terminating]
            trial.release(
                Placement((p,), row, state.nodes.demand(p.shape.request)) for p in leaving
            )
    found: dict[str, list[Placement]] = {}
    # In scheduling order: earlier gangs keep their nodes if not all reservations fit any more.
    for unit in sorted((u for u in units if u.name in claiming), key=lambda unit: unit.order):
        mark = trial.mark()
        rows = {pod: state.nodes.rows.get(node) for pod, node in claiming[unit.name].nodes}
        for pod in unit.pending:
            row = rows.get(pod.key)
            if row is not None:
                trial.place_on_row(pod, row)
        if unit.satisfied_by(placed_pods(trial.since(mark))):
            found[unit.name] = trial.since(mark)
        else:
            trial.rollback(mark)
    return PreemptorReservations(found, state)
