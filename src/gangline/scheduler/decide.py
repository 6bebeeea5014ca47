"""The centre: what is waiting and where there is room, to bindings and reasons. Pure.

One pass over the units in their order. Each gang is placed on paper, whole or not at all. The
first gang that has to wait keeps its place: room is planned for it on the nodes where it can
start soonest, and who comes later runs only where that leaves the plan untouched. So a stream of
small jobs cannot starve a large one, and idle nodes that the plan does not need are still used.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

import numpy as np

from gangline.scheduler import reasons
from gangline.scheduler.model import Binding, Decision, GroupKey, PodFacts, PodKey, Shape, Verdict
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.reasons import Attempt, Room
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit, waiting_units
from gangline.scheduler.vacancies import held_places


def decide(state: ClusterState, now: float) -> Decision:
    """Return the gangs to bind now, and why each other one waits.

    The same state gives the same decision, in whatever order it was observed.

    Args:
        state: what is observed; it is not changed.
        now: the time, in seconds since the epoch, as for the state's vacancies.
    """
    units, verdicts = waiting_units(state, now)
    current = _Pass(state)
    for held in held_places(state, now):
        current.hold([held.placement], held.group)
        current.places.setdefault(held.group, {})[held.pod] = held.placement
    for unit in units:
        current.serve(unit)
    return Decision(
        bindings=tuple(current.bindings),
        verdicts=(*verdicts, *current.verdicts),
        placed=frozenset(current.placed),
    )


@dataclass(slots=True)
class _Pass:
    """One walk over the waiting units, and what it has decided so far."""

    state: ClusterState
    trial: Trial = field(init=False)
    bindings: list[Binding] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    placed: set[GroupKey] = field(default_factory=set)
    failures: dict[object, Attempt] = field(default_factory=dict)
    """By likeness: free room only shrinks in a pass, so what is alike fails alike."""
    held: dict[str, list[Placement]] = field(default_factory=dict)
    """By the name of whom the room is kept for."""
    places: dict[GroupKey, dict[PodKey, Placement]] = field(default_factory=dict)
    """What of it is kept for whom: a gang may use the room that is kept for itself."""
    planned_for: str = ""
    """The first unit that waits: room is planned for it."""

    def __post_init__(self) -> None:
        self.trial = Trial(self.state.nodes)

    def hold(self, placements: list[Placement], name: str) -> None:
        """Keep room for somebody, whoever else could use it."""
        if placements:
            self.trial.hold(placements)
            self.held[name] = self.held.get(name, []) + placements

    def serve(self, unit: Unit) -> None:
        """Place a unit, or say why it waits and plan room for the first that does."""
        own = self.places.get(unit.group, {}) if unit.group is not None else {}
        if own:
            self.trial.release(self.held.pop(unit.name, []))
        self._try(unit)
        settled = unit.group in self.placed or self.planned_for == unit.name
        waiting = {pod.key for pod in unit.waiting if settled}
        self.hold([kept for name, kept in own.items() if name not in waiting], unit.name)

    def _try(self, unit: Unit) -> None:
        likeness = unit.likeness
        if likeness not in self.failures:
            mark = self.trial.mark()
            unfit = place_unit(self.trial, unit)
            if unit.satisfied_by(_pods(self.trial.since(mark))):
                self._accept(unit, self.trial.since(mark), unfit)
                return
            self.failures[likeness] = self._reject(unit, mark, unfit[0])
        self._refuse(unit, self.failures[likeness])

    def _accept(self, unit: Unit, placements: list[Placement], unfit: list[PodFacts]) -> None:
        for placement in placements:
            node = self.state.nodes.facts[placement.row]
            assert node is not None
            self.bindings += [
                Binding(pod.key, pod.uid, node.name, unit.group) for pod in placement.pods
            ]
        if unit.group is not None:
            self.placed.add(unit.group)
        if unfit:
            messages = tuple(
                (pod.key, reasons.explain_surplus(availability(self.trial, pod))) for pod in unfit
            )
            self.verdicts.append(Verdict(reasons.NOT_ENOUGH_RESOURCES, "", messages))

    def _reject(self, unit: Unit, mark: int, unfit: PodFacts) -> Attempt:
        """Take the trial back, plan room if nobody waits yet; return why the unit waits."""
        fitted = sum(len(placement.pods) for placement in self.trial.since(mark))
        shortages = self.trial.shortages(unfit.shape)
        wording = availability(self.trial, unfit)
        self.trial.rollback(mark)
        plan = plan_room(self.state.nodes, unit)
        room, held_for = self._without_holds(unit)
        attempt = Attempt(
            waiting=len(unit.waiting),
            fitted=fitted,
            missing=max(unit.missing, sum(count for _, count in unit.missing_roles)),
            running=len(unit.running),
            unfit=unfit,
            kubernetes=wording,
            shortages=shortages,
            room=room,
            possible=plan is not None,
            held_for=held_for,
        )
        if plan is not None and not self.planned_for:
            self.planned_for = unit.name
            self.hold(plan, unit.name)
        return attempt

    def _without_holds(self, unit: Unit) -> tuple[Room, str]:
        """Return the room there would be if none were kept, and for whom it is if that matters."""
        kept = [placement for placements in self.held.values() for placement in placements]
        self.trial.release(kept)
        room = room_for(self.trial, unit)
        held_for = ", ".join(self.held) if kept and self._fits(unit) else ""
        self.trial.hold(kept)
        return room, held_for

    def _refuse(self, unit: Unit, attempt: Attempt) -> None:
        message = reasons.explain_pod(attempt)
        self.verdicts.append(
            Verdict(
                reason=reasons.NOT_ENOUGH_RESOURCES,
                message=reasons.explain_gang(attempt),
                pods=tuple((pod.key, message) for pod in unit.waiting),
                group=unit.group,
            )
        )

    def _fits(self, unit: Unit) -> bool:
        """Say whether a unit would fit; leave no trace."""
        mark = self.trial.mark()
        place_unit(self.trial, unit)
        fits = unit.satisfied_by(_pods(self.trial.since(mark)))
        self.trial.rollback(mark)
        return fits


def _pods(placements: Iterable[Placement]) -> Iterator[PodFacts]:
    for placement in placements:
        yield from placement.pods


def place_unit(trial: Trial, unit: Unit) -> list[PodFacts]:
    """Place as many of the unit's pods as will go; return those that found no node.

    Pods that were somewhere before go back there, unless that keeps the gang from being placed.
    """
    if unit.places:
        mark = trial.mark()
        unfit = _place_anew(trial, unit, _put_back(trial, unit))
        if unit.satisfied_by(_pods(trial.since(mark))):
            return unfit
        trial.rollback(mark)
    return _place_anew(trial, unit, frozenset())


def _place_anew(trial: Trial, unit: Unit, settled: Set[PodKey]) -> list[PodFacts]:
    unfit: list[PodFacts] = []
    for shape, pods in placing_order(trial.nodes, unit):
        unfit += trial.place(shape, [pod for pod in pods if pod.key not in settled])
    return unfit


def _put_back(trial: Trial, unit: Unit) -> set[PodKey]:
    """Put pods where they were; return those that fit there."""
    rows = {name: trial.nodes.rows.get(node) for name, node in unit.places}
    return {
        pod.key
        for pod in unit.waiting
        if (row := rows.get(pod.key)) is not None and trial.put(pod, row)
    }


def placing_order(nodes: NodeTable, unit: Unit) -> list[tuple[Shape, list[PodFacts]]]:
    """Put pods that have the least choice first, then large ones; spare pods after all others."""
    needed = max(unit.missing, sum(count for _, count in unit.missing_roles))
    ordered = []
    for pods in (unit.waiting[:needed], unit.waiting[needed:]):
        alike: dict[Shape, list[PodFacts]] = defaultdict(list)
        for pod in pods:
            alike[pod.shape].append(pod)
        ordered += sorted(alike.items(), key=lambda item: _choice(nodes, item[0]))
    return ordered


def _choice(nodes: NodeTable, shape: Shape) -> tuple[int, float]:
    """How many nodes may take a pod, and (negative, so that large sorts first) its size."""
    size = 0.0
    for column, amount, weight in nodes.demand(shape.request).parts:
        if weight:
            size += weight * amount / max(1, int(nodes.allocatable[column].max(initial=1)))
    return int(np.count_nonzero(nodes.eligible(shape.constraints).accepts)), -size


def plan_room(nodes: NodeTable, unit: Unit) -> list[Placement] | None:
    """Plan where a unit could start once running gangs have ended; None: nowhere.

    Nodes that have most room now come first: there it can start soonest. Pods of their own (no
    gang) are taken to run for ever, and so are the unit's own members.
    """
    lasting = nodes.lasting.copy()
    for pod in unit.running:
        row = nodes.rows.get(pod.node) if pod.node is not None else None
        if row is not None:
            for column, amount, _ in nodes.demand(pod.shape.request).parts:
                lasting[column, row] += amount
    now_free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
    drained = Trial(nodes, nodes.allocatable - lasting, liking=now_free.mean(axis=0))
    place_unit(drained, unit)
    plan = drained.since(0)
    return plan if unit.satisfied_by(_pods(plan)) else None


def availability(trial: Trial, pod: PodFacts) -> str:
    """Say in Kubernetes' words why no node takes ``pod`` now."""
    nodes = trial.nodes
    shape = pod.shape
    return reasons.availability(
        len(nodes), nodes.refusals(shape.constraints), trial.shortages(shape)
    )


def room_for(trial: Trial, unit: Unit) -> Room:
    """Add up what a unit asks for and what the nodes have that may take any of its pods."""
    nodes = trial.nodes
    total = reasons.total_request(unit.waiting)
    asked = {name: amount for name, amount in total.items() if reasons.is_amount(name)}
    accepts = np.zeros(len(nodes.facts), dtype=bool)
    for constraints in {pod.shape.constraints for pod in unit.waiting}:
        accepts |= nodes.eligible(constraints).accepts
    columns = {name: nodes.columns[name] for name in asked}
    free = {name: np.maximum(trial.free[column][accepts], 0) for name, column in columns.items()}
    return Room(
        asked=asked,
        free={name: int(amounts.sum()) for name, amounts in free.items()},
        largest={name: int(amounts.max(initial=0)) for name, amounts in free.items()},
        total={
            name: int(nodes.allocatable[column][accepts].sum()) for name, column in columns.items()
        },
        eligible=int(accepts.sum()),
    )
