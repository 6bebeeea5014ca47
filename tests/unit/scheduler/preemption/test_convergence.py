"""Evictions are never mutual, and they cease."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.save_first import SaveRequests
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    PodEviction,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
)
from unit.scheduler.builders import cluster, decide, group, node, pod, request
from unit.scheduler.oracle.check import check_result

SEEDS = (0, 1, 3, 4)
CYCLES = 150
CALM_AFTER = 120
"""From this cycle on nothing comes and nothing ends any more."""
QUIET = 8
"""Cycles in which nothing happens, after which nothing will: of that the decisions are made."""
SLOWEST = 4
"""Maximal number of cycles that evicted pods take to end."""
SOON = 20
"""Number of cycles within which evictions must not be mutual."""


class World:
    """Gangs that come, end and are evicted; evicted ones come back at once, with all pods."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        queues = (
            QueueInfo("a", deserved=request(cpu=6, pods=0)),
            QueueInfo("b", weight=3),
            QueueInfo("b1", parent="b", weight=2),
            QueueInfo("b2", parent="b", guarantee=request(cpu=2, pods=0)),
            QueueInfo("c", priority=1, capability=request(cpu=9, pods=0)),
        )
        nodes = [node(f"n{index}", cpu=self.random.randint(3, 5), gpu=2) for index in range(6)]
        self.state: SchedulerCache = cluster(*nodes, *queues)
        self.count = 0
        self.now = 0.0
        self.evicted: Counter[str] = Counter()
        self._ending: dict[PodKey, float] = {}
        """Evicted pods, with the time at which they will have ended."""

    def arrive(self) -> None:
        """Let a gang come."""
        random = self.random
        self.count += 1
        size = random.choice([1, 1, 2, 3, 4, 6])
        name = f"g{self.count}"
        facts: PodGroupInfo = group(
            name,
            random.choice([size, size, (size + 1) // 2]),
            age=int(self.now),
            priority=random.choice([0, 0, 3, 7]),
            queue=random.choice(["a", "b1", "b2", "c", "default"]),
        )
        self.state.set_group(facts)
        kind = {"cpu": random.choice([1, 1, 2, 3]), "gpu": random.choice([0, 0, 1])}
        for index in range(size):
            member = pod(f"{name}-{index}", group=name, priority=facts.priority, **kind)  # type: ignore[arg-type]
            self.state.set_pod(member)

    def end(self) -> None:
        """Let a gang that runs end."""
        running = sorted(key for key in self.state.placed_members if key in self.state.groups)
        if running:
            key = GroupKey(self.random.choice(running))
            for member in list(self.state.members[key]):
                self.state.remove_pod(member)
            self.state.remove_group(key)

    def cycle(self) -> CycleResult:
        """Decide, let the oracle check the result, and carry it out."""
        self.now += 1
        decision = decide(self.state, self.now)
        check_result(self.state, decision, self.now)
        self.carry_out(decision)
        return decision

    def carry_out(self, decision: CycleResult) -> None:
        """Apply a result, and let pods end."""
        self.state.reservations = dict(decision.reservations)
        self.decided(decision)
        for binding in decision.bindings:
            self.state.assume(binding.pod, binding.node)
            self.state.set_pod(replace(self.state.pods[binding.pod], phase="Running"))
        self.evict(decision.evictions)
        self.end_pods()

    def decided(self, decision: CycleResult) -> None:
        """Called with each result, when its reservations are known."""

    def evict(self, evictions: Sequence[PodEviction]) -> None:
        """Let evicted pods begin to end, with the rest of gangs that are broken."""
        for key in sorted({e.group for e in evictions if e.group}):
            self.evicted[key] += 1
            running = [e for e in self.state.members[key].values() if e.holds_resources]
            gone = {eviction.pod for eviction in evictions}
            gone |= {each.key for each in running if each.is_terminating}
            if sum(each.key not in gone for each in running) < self.state.groups[key].min_member:
                gone |= {each.key for each in running}
            for each in running:
                if each.key in gone and each.key not in self._ending:
                    self.state.evict(each.key, each.uid)
                    self._ending[each.key] = self.now + self.random.randint(0, SLOWEST)

    def end_pods(self) -> None:
        """Recreate the pods that have ended."""
        for key, end in list(self._ending.items()):
            if end <= self.now:
                del self._ending[key]
                if key in self.state.pods:
                    self._come_back(self.state.pods[key])

    def _come_back(self, gone: PodInfo) -> None:
        self.state.remove_pod(gone.key)
        if gone.group is not None:
            self.state.former_members.pop(gone.group, None)
        if gone.group in self.state.groups:
            back = replace(
                gone, uid=f"{gone.uid}+", node=None, phase="Pending", is_terminating=False
            )
            self.state.set_pod(back)


def comes_to_rest(world: World, cycles: int, calm_after: int, quiet_after: int) -> int:
    """Check the decisions of a world; return how many pods were to be evicted.

    Args:
        calm_after: from this cycle on nothing comes and nothing ends any more.
        quiet_after: from this cycle on nothing is decided any more.
    """
    taken: dict[tuple[str, str], int] = {}
    evictions = 0
    for cycle in range(cycles):
        if cycle < calm_after:
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
        if cycle > quiet_after:
            assert not decision.evictions
            assert not decision.bindings
    return evictions


@pytest.mark.parametrize("seed", SEEDS)
def test_evictions_of_a_history_are_not_mutual_and_cease(seed: int) -> None:
    assert comes_to_rest(World(seed), CYCLES, CALM_AFTER, CALM_AFTER + SOON)


@pytest.mark.parametrize("seed", range(10, 18))
def test_idle_cluster_evicts_no_gang_twice(seed: int) -> None:
    world = World(seed)
    for _ in range(12):
        world.arrive()
    quiet = 0
    for _ in range(40):
        decision = world.cycle()
        quiet = 0 if decision.bindings or decision.evictions else quiet + 1
        if quiet == QUIET:
            break
    assert not [name for name, times in world.evicted.items() if times > 1]
    last = world.cycle()
    assert not last.bindings
    assert not last.evictions


WAIT = 6.0
"""Cycles for which a save is waited."""
SAVING_CYCLES = 260
SAVING_CALM_AFTER = 150
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
        for key, decided in by_gang.items():
            if self.random.random() < 0.2 and key not in self.requests.open:
                super().evict(decided)
                continue
            for eviction in decided:
                self.state.evict(eviction.pod, eviction.uid)
            name = f"{key}@{self.now}"
            if self.requests.begin(key, decided, self.now, WAIT, name) is not None:
                self.answers[key] = (name, self.now + self.random.choice([0, 1, 3, 5, 1000]))
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
    quiet_after = SAVING_CALM_AFTER + SOON + int(4 * (WAIT + SLOWEST))
    evictions = comes_to_rest(world, SAVING_CYCLES, SAVING_CALM_AFTER, quiet_after)
    assert not world.requests.open
    return evictions


def test_gangs_that_save_first_are_not_evicted_in_turn_and_come_to_rest() -> None:
    worlds = [SavingWorld(seed) for seed in (5, 7)]
    assert sum(map(quiet_in_the_end, worlds)) > 14
    assert any(world.withdrawn for world in worlds), "some gangs were placed elsewhere, or ended"
