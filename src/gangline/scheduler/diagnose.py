"""Diagnosis: the facts for the messages of a gang that the cycle could not place."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler import reasons
from gangline.scheduler.model import GroupKey, NodeName, PodFacts
from gangline.scheduler.place import Planner, availability, place_unit, pods_of, room_for
from gangline.scheduler.queues import Account
from gangline.scheduler.reasons import Attempt, Holders, Plan, Room
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit

SHOWN = 3
"""Number of gangs and nodes that a message names."""
_CANDIDATES = 8
"""Number of large gangs that are examined: not all of their pods need be on the eligible nodes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Messages of equivalent pending gangs."""

    gang: str
    pod: str
    if_cleared: "Failure | None" = None
    """The messages if pods are being evicted for the gang; None: the same."""


class Diagnosis:
    """Explains failures within one cycle."""

    def __init__(self, state: ClusterState, trial: Trial, planner: Planner) -> None:
        self._state, self._trial, self._planner = state, trial, planner
        self._users: dict[tuple[str, str], Holders] = {}

    def fail(
        self, unit: Unit, mark: int, unfit: PodFacts, held: Mapping[str, Sequence[Placement]]
    ) -> Failure:
        """Roll the allocation back to ``mark`` and return why the gang is pending.

        Args:
            unit: the gang that did not fit.
            mark: the point where its placement began.
            unfit: one of its pods that found no node.
            held: reserved placements, by the name of their gang.
        """
        fitted = sum(len(placement.pods) for placement in self._trial.since(mark))
        shortages = self._trial.shortages(unfit.shape)
        wording = availability(self._trial, unfit, shortages)
        self._trial.rollback(mark)
        capacity, held_for = self._without_holds(unit, held)
        attempt = Attempt(
            waiting=len(unit.waiting),
            fitted=fitted,
            missing=unit.needed,
            running=len(unit.running),
            unfit=unfit,
            kubernetes=wording,
            shortages=shortages,
            room=capacity,
            possible=self._planner.is_possible(unit),
            held_for=held_for,
            holders=self._holders(unit, capacity, shortages),
        )
        near = reasons.ONE_DOMAIN if unit.network is not None and unit.network.hard else ""
        if attempt.possible:
            return _failure(attempt, near)
        # A plan assumes that single pods never end, but preemption may evict them.
        cleared = _failure(replace(attempt, possible=True), near)
        return replace(_failure(attempt, near), if_cleared=cleared)

    def plan(self, unit: Unit, placements: Iterable[Placement]) -> Plan:
        """Return the planned nodes of a gang, and the gangs that run there now."""
        nodes: list[NodeName] = []
        gangs: Counter[str] = Counter()
        for row in sorted({placement.row for placement in placements}):
            node = self._state.nodes.facts[row]
            if node is None:
                continue
            nodes.append(node.name)
            gangs.update(
                pod.group
                for pod in self._state.pods_on(node.name)
                if pod.group is not None and pod.group != unit.group
            )
        ordered = sorted(gangs, key=lambda name: (-gangs[name], name))
        return Plan(tuple(sorted(nodes)), tuple(ordered))

    def users(self, account: Account, resource: str) -> Holders:
        """Return the largest users of a resource in a queue and its descendants."""
        known = self._users.get((account.facts.name, resource))
        if known is None:
            running = self._state.running
            below = _names(account)
            used = {
                group: amounts[resource]
                for group, amounts in running.by_group.items()
                if amounts.get(resource) and running.queue_of(group) in below
            }
            known = _holders(resource, used, sum(used.values()), 0)
            self._users[account.facts.name, resource] = known
        return known

    def _without_holds(
        self, unit: Unit, held: Mapping[str, Sequence[Placement]]
    ) -> tuple[Room, str]:
        """Return the capacity without reservations, and their owners if these alone keep the gang
        pending.
        """
        kept = [placement for placements in held.values() for placement in placements]
        self._trial.release(kept)
        capacity = room_for(self._trial, unit)
        enough = all(capacity.free.get(name, amount) >= amount for name, amount in unit.asked)
        held_for = ", ".join(held) if kept and enough and self._fits(unit) else ""
        self._trial.hold(kept)
        return capacity, held_for

    def _fits(self, unit: Unit) -> bool:
        """Return whether a gang would fit; the allocation is rolled back."""
        mark = self._trial.mark()
        place_unit(self._trial, unit, unit.waiting)
        fits = unit.satisfied_by(pods_of(self._trial.since(mark)))
        self._trial.rollback(mark)
        return fits

    def _holders(self, unit: Unit, capacity: Room, shortages: Mapping[str, int]) -> Holders | None:
        """Return the largest users of the scarce resource on the nodes that accept the gang."""
        resource = _scarcest(capacity, shortages)
        if resource is None:
            return None
        nodes = self._state.nodes
        accepts = np.zeros(len(nodes.facts), dtype=bool)
        for constraints in {pod.shape.constraints for pod in unit.waiting}:
            accepts |= nodes.eligible(constraints).accepts
        largest = self._state.running.largest(resource, _CANDIDATES)
        if np.count_nonzero(accepts) == len(nodes):
            used = dict(largest)
        else:
            used = {group: self._used_on(accepts, group, resource) for group, _ in largest}
        used = {group: amount for group, amount in used.items() if amount and group != unit.group}
        column = nodes.columns[resource]
        total = int((nodes.used[column] * accepts).sum())
        return _holders(resource, used, total, int((nodes.lasting[column] * accepts).sum()))

    def _used_on(self, accepts: NDArray[np.bool_], group: GroupKey, resource: str) -> int:
        rows = self._state.nodes.rows
        used = 0
        for pod in self._state.placed_members.get(group, {}).values():
            row = rows.get(pod.node) if pod.node is not None else None
            if row is not None and accepts[row]:
                used += dict(pod.shape.request).get(resource, 0)
        return used


def _failure(attempt: Attempt, near: str) -> Failure:
    gang, pod = reasons.explain_gang(attempt), reasons.explain_pod(attempt)
    return Failure(f"{near}{gang}", f"{pod} {near}".strip())


def _holders(resource: str, used: Mapping[GroupKey, int], total: int, without_gang: int) -> Holders:
    largest = sorted(used, key=lambda group: (-used[group], group))[:SHOWN]
    shown = tuple((str(group), used[group]) for group in largest)
    others = total - without_gang - sum(amount for _, amount in shown)
    return Holders(resource, shown, without_gang, max(0, others))


def _scarcest(capacity: Room, shortages: Mapping[str, int]) -> str | None:
    """Return the resource with the largest relative shortage; None: no amount is short."""
    short = {
        name: (asked - capacity.free[name]) / asked
        for name, asked in capacity.asked.items()
        if asked > capacity.free[name]
    }
    if short:
        return min(short, key=lambda name: (-short[name], name))
    counts = {name: count for name, count in shortages.items() if name in capacity.asked}
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


def _names(account: Account) -> set[str]:
    names = {account.facts.name}
    for child in account.children:
        names |= _names(child)
    return names
