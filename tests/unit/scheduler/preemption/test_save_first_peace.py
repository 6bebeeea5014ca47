"""Evictions that wait for a save are never mutual, and they cease."""

from collections import defaultdict
from collections.abc import Sequence

from gangline.scheduler.preemption.save_first import SaveRequests
from gangline.scheduler.types.types import CycleResult, GroupKey, PodEviction
from unit.scheduler.preemption.test_convergence import SLOWEST, SOON, World

WAIT = 6.0
"""Cycles for which a save is waited."""
CYCLES = 260
CALM_AFTER = 150
"""From this cycle on nothing comes and nothing ends any more."""


class SavingWorld(World):
    """Most gangs save before they are evicted; of these some never answer."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.requests = SaveRequests()
        self.answers: dict[GroupKey, tuple[str, float]] = {}
        self.withdrawn = 0

    def decided(self, decision: CycleResult) -> None:
        """Evictions that wait go to the gangs that need them now."""
        self.requests.transfer(decision.displaced, decision.awaited, self.is_waiting)

    def evict(self, evictions: Sequence[PodEviction]) -> None:
        """Ask the gangs, and carry out what is due."""
        by_gang: dict[GroupKey, list[PodEviction]] = defaultdict(list)
        for eviction in evictions:
            assert eviction.group is not None
            by_gang[eviction.group].append(eviction)
        for group, decided in by_gang.items():
            if self.random.random() < 0.2 and group not in self.requests.open:
                super().evict(decided)
                continue
            for eviction in decided:
                self.state.evict(eviction.pod, eviction.uid)
            name = f"{group}@{self.now}"
            if self.requests.begin(group, decided, self.now, WAIT, name) is not None:
                self.answers[group] = (name, self.now + self.random.choice([0, 1, 3, 5, 1000]))
        self.settle()

    def settle(self) -> None:
        for outcome in self.requests.settle(
            self.now,
            answered_id=self.answered_id,
            is_waiting=self.is_waiting,
            is_present=self.is_present,
        ):
            if outcome.evict:
                super().evict(outcome.evict)
            for eviction in outcome.withdraw:
                self.withdrawn += 1
                self.state.undo_eviction(eviction.pod, eviction.uid)

    def is_waiting(self, name: str) -> bool:
        return name in self.state.reservations and self.state.reservations[name].preempting

    def answered_id(self, group: GroupKey) -> str:
        name, at = self.answers[group]
        return name if self.now >= at else ""

    def is_present(self, eviction: PodEviction) -> bool:
        pod = self.state.pods.get(eviction.pod)
        return pod is not None and pod.uid == eviction.uid


def quiet_in_the_end(world: SavingWorld) -> int:
    """Check the decisions of a world; return how many pods were to be evicted."""
    taken: dict[tuple[str, str], int] = {}
    evictions = 0
    for cycle in range(CYCLES):
        if cycle < CALM_AFTER:
            if world.random.random() < 0.25:
                world.arrive()
            if world.random.random() < 0.25:
                world.end()
        decision = world.cycle()
        evictions += len(decision.evictions)
        for eviction in decision.evictions:
            victim = str(eviction.group)
            assert cycle - taken.get((victim, eviction.beneficiary), -SOON) >= SOON
            taken[eviction.beneficiary, victim] = cycle
        if cycle > CALM_AFTER + SOON + 4 * (WAIT + SLOWEST):
            assert not decision.evictions
            assert not decision.bindings
    assert not world.requests.open
    return evictions


def test_gangs_that_save_first_are_not_evicted_in_turn_and_come_to_rest() -> None:
    worlds = [SavingWorld(seed) for seed in (0, 1, 3)]
    assert sum(map(quiet_in_the_end, worlds)) > 20
    assert any(world.withdrawn for world in worlds), "some gangs were placed elsewhere, or ended"
