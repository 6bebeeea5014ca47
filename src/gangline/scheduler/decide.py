"""One scheduling cycle: from the cache to bindings, evictions, reservations and reasons.

A cycle serves pending gangs in scheduling order. Each gang is placed tentatively, completely or not
at all. The first gang that stays pending gets a reservation on the nodes where it can start
soonest. Later gangs run only where they leave the reservation untouched, or end before it starts
(backfill). So a stream of small jobs cannot starve a large one, and idle nodes outside the
reservation are used.

Invariants:

- The result depends on the cache and the time only, not on the order in which objects arrived.
- Free resources only shrink during a cycle. Therefore equivalent gangs fail equally, and the
  explanation of the first failure serves all of them.
- Reservations are charged to the scratch allocation like placements, so no gang uses them twice.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from gangline.scheduler import reasons
from gangline.scheduler.backfill import Window, opens_at
from gangline.scheduler.claims import Claims, standing_claims
from gangline.scheduler.diagnose import Diagnosis, Failure
from gangline.scheduler.fairness import NamespaceShares
from gangline.scheduler.grants import Grants
from gangline.scheduler.limits import limit_of
from gangline.scheduler.line import Line
from gangline.scheduler.model import (
    Decision,
    Eviction,
    GroupKey,
    NodeName,
    PodKey,
    Promise,
    QueueFacts,
    Verdict,
)
from gangline.scheduler.place import Planner, place_unit, pods_of
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.shares import Vector
from gangline.scheduler.state import ClusterState
from gangline.scheduler.surplus import Surplus
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.turns import Turn
from gangline.scheduler.units import Unit, waiting_units
from gangline.scheduler.vacancies import HeldPlace, held_places
from gangline.scheduler.victims import Candidates, Clearance, Policy

ANY_EVICTION = Policy()


def decide(state: ClusterState, now: float, policy: Policy = ANY_EVICTION) -> Decision:
    """Run one cycle: return the gangs to bind now, and why each other gang is pending.

    Args:
        state: the cache; the cycle does not change it.
        now: the time in seconds since the epoch, on the clock of the cache.
        policy: which evictions are allowed, and which shares order gangs.
    """
    units, verdicts = waiting_units(state, now)
    claims = standing_claims(state, units, now)
    current = _Pass(state, [claims.unit(unit) for unit in units], now, policy)
    current.keep_claims(claims, units)
    for held in held_places(state, now):
        current.keep(held)
    current.run()
    return Decision(
        bindings=tuple(current.grants.bindings),
        verdicts=(*verdicts, *current.verdicts),
        placed=frozenset(current.placed),
        evictions=tuple(current.evictions),
        promises=current.promises,
        lodgers=current.lodgers,
    )


class _Pass:
    """The state of one cycle: what it has decided so far."""

    def __init__(
        self, state: ClusterState, units: Sequence[Unit], now: float, policy: Policy
    ) -> None:
        self.state = state
        self.now = now
        self.trial = Trial(state.nodes)
        self.tree = QueueTree(
            state.queues, state.nodes, state.running, state.requested, state.obtainable()
        )
        fairness = policy.fairness
        shares = NamespaceShares(state, self.tree) if fairness.namespaces else None
        self.grants = Grants(state, self.tree, shares)
        share_of = self.grants.share_of if fairness.gangs else None
        self.line = Line(units, self.tree, share_of, shares)
        self.verdicts: list[Verdict] = []
        self.placed: set[GroupKey] = set()
        self.evictions: list[Eviction] = []
        self.promises: dict[str, Promise] = {}
        self.lodgers: dict[GroupKey, str] = {}
        self._lodging = policy.lodge and policy.preempt
        """Backfilling on an estimated run time requires preemption, to evict the gang if the
        estimate is wrong.
        """
        self._planner = Planner(state.nodes)
        self._diagnosis = Diagnosis(state, self.trial, self._planner)
        self._waiting: Counter[str] = Counter()
        """Gangs of each queue that were served and stay pending: they are before the next one."""
        self._candidates = Candidates(state, self.tree, policy, now)
        self._spared: set[object] = set()
        """Equivalence keys for which no victims were found."""
        self._planned = False
        """True once the first pending gang of the cycle has a reservation."""
        self._window = Window()
        self._failures: dict[object, Failure] = {}
        """Failures by equivalence key."""
        self._hopeless: dict[tuple[object, str, int], Failure] = {}
        """Failures by (equivalence key, queue, priority) of gangs for which neither placement nor
        preemption nor a reservation is possible in this cycle. Equivalent gangs fail without being
        tried.
        """
        self._held: dict[str, list[Placement]] = {}
        """Reserved placements by the name of their gang."""
        self._places: dict[str, dict[PodKey, Placement]] = {}
        """Restart reservations by gang and pod: a gang may use its own."""
        self._claims: Mapping[str, list[Placement]] = {}
        self._first_in: dict[str, str] = {}
        """Head of line of each queue whose pending gangs block later ones."""
        self._surplus = Surplus(self.trial, self.tree, self.line, self.grants)

    def keep_claims(self, claims: "Claims", units: Iterable[Unit]) -> None:
        """Reserve the resources that earlier evictions freed, for the gangs that caused them."""
        self._claims = claims.placements
        for name, placements in claims.placements.items():
            self._hold(placements, name)
        for unit in units:
            if unit.name in claims.placements:
                self._candidates.outlook.expect(unit.name, unit.queue, unit.asked)

    def keep(self, held: HeldPlace) -> None:
        """Reserve the node of a lost or restarting member, unless the gang has a preemptor
        reservation.
        """
        if held.group not in self._claims and self.trial.has_room(held.placement):
            self._hold([held.placement], held.group)
            self._places.setdefault(held.group, {})[held.pod] = held.placement

    def run(self) -> None:
        while (turn := self.line.pop()) is not None:
            if turn.surplus:
                self.verdicts += self._surplus.serve(turn)
            else:
                self._serve(turn.unit)

    def _hold(self, placements: list[Placement], name: str) -> None:
        if placements:
            self.trial.hold(placements)
            self._held[name] = self._held.get(name, []) + placements

    def _serve(self, unit: Unit) -> None:
        """Place a gang, or record why it is pending.

        A gang with a reservation of its own is tried with that reservation released. If it stays
        pending, the reservation is charged again, so that later gangs cannot use it.
        """
        known = self._told(unit) if self._hopeless else None
        if known is not None and unit.name not in self._claims and unit.name not in self._places:
            # Nothing is left but backfill: its run time is not part of the equivalence key.
            if not self._slip_in(unit):
                self._refuse(unit, reasons.NOT_ENOUGH_RESOURCES, known.gang, known.pod)
            return
        amount = self.tree.amount(unit.asked)
        if self._barred(unit, amount):
            return
        own = self._places.get(unit.name, {})
        claim = self._claims.get(unit.name, [])
        if own or claim:
            self.trial.release(self._held.pop(unit.name, []))
        placed = self._try(unit)
        if own:
            settled = placed or unit.name in self.promises
            waiting = {pod.key for pod in unit.waiting if settled}
            self._hold([kept for name, kept in own.items() if name not in waiting], unit.name)
        if claim and not placed:
            self._hold(claim, unit.name)
            self.promises[unit.name] = self.state.promises[unit.name]

    def _told(self, unit: Unit) -> Failure | None:
        """Return the failure of an equivalent gang for which nothing more is possible; None:
        unknown.
        """
        return self._hopeless.get((self._likeness(unit), unit.queue, unit.priority))

    def _barred(self, unit: Unit, amount: Vector) -> bool:
        """Record the reason if the limit or the FIFO order of the queue blocks a gang."""
        first = self._first_in.get(unit.queue)
        if first is not None and not unit.urgent:
            self._refuse(unit, reasons.QUEUE_LIMIT, reasons.behind(unit.queue, first))
            return True
        account = self.tree.blocking(unit.queue, amount)
        if account is None:
            return False
        limit = limit_of(self.tree, account, amount)
        users = self._diagnosis.users(account, next(iter(limit.most)))
        self._refuse(unit, reasons.QUEUE_LIMIT, reasons.over_limit(limit, users))
        if not account.held.any() and all(
            limit.asked[name] <= most for name, most in limit.most.items()
        ):
            # Later gangs of the queue must not use what ends before the first can start.
            self.tree.hold(unit.queue, amount)
        self._note_first(unit)
        return True

    def _note_first(self, unit: Unit) -> None:
        if self.state.queues.get(unit.queue, _ANY_QUEUE).fifo:
            self._first_in.setdefault(unit.queue, unit.name)

    def _try(self, unit: Unit) -> bool:
        """Place a gang and return True, or record why it is pending."""
        likeness = self._likeness(unit)
        failure = self._failures.get(likeness)
        if failure is None:
            mark = self.trial.mark()
            # The minimum comes first, alone: the scheduling order decides on extra pods.
            for count in sorted({unit.needed, len(unit.waiting)}):
                unfit = place_unit(self.trial, unit, unit.waiting[:count])
                placements = self.trial.since(mark)
                if unit.satisfied_by(pods_of(placements)):
                    self._accept(unit, placements)
                    return True
                if count < len(unit.waiting):
                    self.trial.rollback(mark)
            failure = self._diagnosis.fail(unit, mark, unfit[0], self._held)
            self._failures[likeness] = failure
        if self._slip_in(unit):
            return True
        outlook = self._make_room(unit)
        if self._planned and not outlook and self.tree.is_open(unit.queue):
            self._hopeless[likeness, unit.queue, unit.priority] = failure
        shown = (failure.if_cleared if outlook == reasons.CLEARING else None) or failure
        gang, pod = (reasons.clipped(text, outlook) for text in (shown.gang, shown.pod))
        self._refuse(unit, reasons.NOT_ENOUGH_RESOURCES, gang, pod)
        self._note_first(unit)
        return False

    def _likeness(self, unit: Unit) -> object:
        """Return the key by which gangs fit equally. Inter-pod rules depend on labels: then a gang
        is unique.
        """
        alone = unit.related or self.state.nodes.repelling
        return (unit.likeness, unit.name) if alone else unit.likeness

    def _make_room(self, unit: Unit) -> str:
        """Evict pods for a gang if that is allowed and sufficient; else reserve nodes for the first
        one.

        Returns:
            The consequence for the gang, as a sentence of its message; empty: none.
        """
        if unit.name in self._claims:
            return reasons.CLEARING
        likes = (self._likeness(unit), unit.queue, unit.priority)
        if likes not in self._spared:
            clearance = self._candidates.clear(self.trial, unit)
            if clearance is not None:
                self._evict(unit, clearance)
                return reasons.CLEARING
            self._spared.add(likes)
        # Only the first pending gang of a cycle gets a reservation. More of them would delay each
        # other, and leave fewer nodes for backfill.
        if not self._planned:
            plan = self._planner.plan(unit, self.state.promises.get(unit.name))
            if plan is not None:
                self._planned = True
                self._promise(unit, plan)
                self._window = self._window_of(unit, plan)
                return reasons.planned(self._diagnosis.plan(unit, plan))
        return ""

    def _window_of(self, unit: Unit, plan: list[Placement]) -> Window:
        """Return until when other gangs may use the nodes that are reserved for a gang."""
        opens = opens_at(self.state, self.trial, plan, self.now)
        likely = 0.0
        if self._lodging and unit.group is not None and all(pod.preempts for pod in unit.waiting):
            likely = opens or opens_at(self.state, self.trial, plan, self.now, likely=True)
        return Window(tuple(plan), opens, likely, unit.name)

    def _slip_in(self, unit: Unit) -> bool:
        """Backfill: place a gang on reserved nodes if it ends before the reservation starts."""
        window = self._window
        sure = window.admits(unit, self.now)
        if not sure and not window.lodges(self.state, unit, self.now):
            return False
        if self.tree.blocking(unit.queue, self.tree.amount(unit.asked)) is not None:
            return False
        placed = window.place(self.trial, unit)
        if placed:
            self._accept(unit, placed)
            if unit.group is not None and not sure:
                self.lodgers[unit.group] = window.host
        return bool(placed)

    def _evict(self, unit: Unit, clearance: Clearance) -> None:
        self._promise(unit, list(clearance.placements), cleared=True)
        self.evictions += [
            Eviction(
                pod.key,
                pod.uid,
                pod.node or NodeName(""),
                pod.group,
                unit.name,
                clearance.reason,
            )
            for pod in clearance.victims
        ]

    def _accept(self, unit: Unit, placements: list[Placement]) -> None:
        given = self.grants.bind(unit, placements)
        self._candidates.outlook.arrived(unit.name)
        if unit.group is not None:
            self.placed.add(unit.group)
        if len(given) < len(unit.waiting):
            left = [pod for pod in unit.waiting if pod.key not in given]
            share = self.grants.share_of(unit)
            self.line.again(Turn(unit, True, deque(left), share=share))

    def _promise(self, unit: Unit, plan: list[Placement], cleared: bool = False) -> None:
        """Reserve the planned nodes for a gang. A new plan keeps the age of the reservation it
        replaces.
        """
        self._hold(plan, unit.name)
        known = self.state.promises.get(unit.name)
        places = tuple((pod.key, self.state.nodes.name_of(p.row)) for p in plan for pod in p.pods)
        places = tuple(sorted(places))
        since = known.since if known is not None and not cleared else self.now
        self.promises[unit.name] = Promise(places, cleared, since)

    def _refuse(self, unit: Unit, reason: str, gang: str, pod: str | None = None) -> None:
        message = gang if pod is None else pod
        if unit.group is not None:
            standing = reasons.standing(unit.queue, self._waiting[unit.queue], unit.since)
            gang = reasons.clipped(gang, standing)
        self._waiting[unit.queue] += 1
        self.verdicts.append(
            Verdict(reason, gang, tuple([(key, message) for key in unit.keys]), unit.group)
        )


_ANY_QUEUE = QueueFacts("")
