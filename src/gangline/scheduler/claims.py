"""Reservations for preemptors: resources freed by an eviction stay reserved for the gang that
caused it.

They are valid for at most 10 minutes, and only while the gang still fits there once all terminating
pods have ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.scheduler.place import pods_of
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit

CLAIM_S = 600.0
"""Validity of a preemptor's reservation: longer than the grace period of evicted pods."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Valid reservations of preemptors, by the name of the gang."""

    placements: Mapping[str, list[Placement]]
    state: ClusterState

    def unit(self, unit: Unit) -> Unit:
        """Return the gang with its reserved nodes as previous nodes, if it has any."""
        if unit.name not in self.placements:
            return unit
        places = self.state.promises[unit.name].places
        return replace(unit, places=places, likeness=(unit.likeness, unit.name))


def standing_claims(state: ClusterState, units: Iterable[Unit], now: float) -> Claims:
    """Return the reservations that gangs can use once the evicted pods have ended."""
    claiming = {
        name: promise
        for name, promise in state.promises.items()
        if promise.cleared and now - promise.since < CLAIM_S
    }
    if not claiming:
        return Claims({}, state)
    nodes = {node for promise in claiming.values() for _, node in promise.places}
    trial = Trial(state.nodes)
    for node in nodes:
        row = state.nodes.rows.get(node)
        if row is not None:
            leaving = [pod for pod in state.pods_on(node) if pod.terminating]
            trial.release(
                Placement((p,), row, state.nodes.demand(p.shape.request)) for p in leaving
            )
    found: dict[str, list[Placement]] = {}
    # In scheduling order: earlier gangs keep their nodes if not all reservations fit any more.
    for unit in sorted((u for u in units if u.name in claiming), key=lambda unit: unit.order):
        mark = trial.mark()
        rows = {pod: state.nodes.rows.get(node) for pod, node in claiming[unit.name].places}
        for pod in unit.waiting:
            row = rows.get(pod.key)
            if row is not None:
                trial.put(pod, row)
        if unit.satisfied_by(pods_of(trial.since(mark))):
            found[unit.name] = trial.since(mark)
        else:
            trial.rollback(mark)
    return Claims(found, state)
