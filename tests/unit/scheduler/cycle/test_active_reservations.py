"""Reservations of preemptors give way to higher priorities of the same queue."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Reservation,
)
from unit.scheduler.builders import cluster, decide, gang, group, node, pod
from unit.scheduler.preemption.test_convergence import World

NOW = 1000.0
CYCLES = 25
ARRIVALS = 15
"""Number of cycles in which gangs arrive."""


def reserved(name: str, *nodes: str) -> Reservation:
    keys = [PodKey(f"d/{name}-worker-{index}") for index in range(len(nodes))]
    return Reservation(tuple(zip(keys, map(NodeName, nodes), strict=True)), True, NOW - 1)


def waiting(name: str, size: int, priority: int, age: int = 0, **facts: object) -> list[object]:
    """A pending gang; its pods ask for one processor each."""
    made = gang(name, size, age=age, priority=priority, **facts)
    return [group(name, size, age=age, priority=priority), *made[1:]]


def ending(count: int) -> list[PodInfo]:
    """Pods of one processor that end, each on a node of its own."""
    return [pod(f"old-{n}", on=f"n{n}", is_terminating=True) for n in range(count)]


def nodes(count: int) -> list[object]:
    return [node(f"n{index}", cpu=1) for index in range(count)]


def made(*objects: object, **reservations: Reservation) -> SchedulerCache:
    state = cluster(*objects)  # type: ignore[arg-type]
    state.reservations = {f"d/{name}": each for name, each in reservations.items()}
    return state


def test_as_few_reservations_as_necessary_give_way_the_lowest_first() -> None:
    names = ["a", "b", "c", "e"]
    state = made(
        *nodes(4),
        *ending(4),
        *[each for n, name in enumerate(names) for each in waiting(name, 1, priority=8 - n)],
        *waiting("high", 2, priority=9),
        **{name: reserved(name, f"n{n}") for n, name in enumerate(names)},
    )
    result = decide(state, NOW)
    assert result.displaced == {"d/c", "d/e"}
    assert {name for name, each in result.reservations.items() if each.preempting} == {
        "d/high",
        "d/a",
        "d/b",
    }
    assert result.evictions == ()
    assert {key: each.beneficiary for key, each in result.awaited.items()} == {
        "d/old-0": "d/a",
        "d/old-1": "d/b",
        "d/old-2": "d/high",
        "d/old-3": "d/high",
    }
    assert result.awaited[PodKey("d/old-3")].reason == "preempted by d/high of higher priority"


@pytest.mark.parametrize("reclaim", [True, False])
def test_queue_that_may_not_reclaim_displaces_nothing(reclaim: bool) -> None:
    state = made(
        node("n0", cpu=2),
        QueueInfo("owing"),
        QueueInfo("owed"),
        pod("stays", on="n0", group="stays", preemptable=False),
        group("stays", 1, queue="owing"),
        group("low", 1, queue="owing"),
        pod("low-worker-0", group="low"),
        group("claims", 1, queue="owed"),
        pod("claims-0", group="claims"),
        low=reserved("low", "n0"),
    )
    result = run_cycle(state, NOW, EvictionPolicy(reclaim=reclaim))
    assert [each.pod for each in result.bindings] == ["d/claims-0" if reclaim else "d/low-worker-0"]


def test_higher_priority_comes_first_where_preemption_is_switched_off() -> None:
    """It evicts nobody by that: the reservation follows the order of the queue."""
    state = made(
        *nodes(1),
        *ending(1),
        *waiting("low", 1, priority=1),
        *waiting("high", 1, priority=9),
        low=reserved("low", "n0"),
    )
    result = run_cycle(state, NOW, EvictionPolicy(preempt=False))
    assert result.displaced == {"d/low"}
    assert result.reservations["d/high"].preempting


def test_only_pods_that_the_reservation_needs_are_awaited() -> None:
    state = made(
        node("n0", cpu=4),
        *[pod(f"old-{n}", on="n0", is_terminating=True) for n in range(4)],
        *waiting("low", 2, priority=1),
        low=reserved("low", "n0", "n0"),
    )
    assert set(decide(state, NOW).awaited) == {"d/old-0", "d/old-1"}


class OneQueue(World):
    """A world of one queue, in which gangs of several priorities come."""

    def __init__(self, random: Random) -> None:
        super().__init__(0)
        self.random = random
        sizes = [node(f"n{index}", cpu=random.randint(1, 4)) for index in range(4)]
        self.state = cluster(*sizes)

    def arrive(self) -> None:
        self.count += 1
        name, size = f"g{self.count}", self.random.randint(1, 4)
        facts: PodGroupInfo = group(
            name, size, age=int(self.now), priority=self.random.choice([0, 0, 3, 5, 7])
        )
        self.state.set_group(facts)
        cpu = self.random.randint(1, 2)
        for index in range(size):
            self.state.set_pod(pod(f"{name}-{index}", cpu=cpu, group=name, priority=facts.priority))


def free_amounts(state: SchedulerCache, decision: CycleResult, ended: bool) -> Counter[str]:
    """Free processors by node beside running pods and new bindings.

    Args:
        state: the cache before the decision is carried out.
        decision: the decision.
        ended: whether pods that were ending before it count as ended.
    """
    free = Counter(
        {str(each.name): dict(each.allocatable)["cpu"] for each in state.nodes.infos if each}
    )
    for each in state.pods.values():
        if each.holds_resources and not (ended and each.is_terminating):
            free[str(each.node)] -= dict(each.shape.request)["cpu"]
    for binding in decision.bindings:
        free[str(binding.node)] -= dict(state.pods[binding.pod].shape.request)["cpu"]
    return free


def fits(
    state: SchedulerCache,
    decision: CycleResult,
    facts: PodGroupInfo,
    free: Counter[str],
    reservations: dict[str, Reservation],
) -> bool:
    """Whether a gang fits beside all reservations but those of lower priority."""
    left = free.copy()
    for name, each in reservations.items():
        owner = state.groups.get(GroupKey(name))
        yields = owner is None or (each.preempting and owner.priority < facts.priority)
        if name != facts.key and not yields:
            for key, where in each.nodes:
                if key in state.pods and key not in {bound.pod for bound in decision.bindings}:
                    left[str(where)] -= dict(state.pods[key].shape.request)["cpu"]
    members = state.members[facts.key].values()
    one = dict(next(iter(members)).shape.request)["cpu"]
    return sum(max(0, amount) // one for amount in left.values()) >= facts.min_member


def violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Gangs that wait behind, or evict pods because of, a reservation of lower priority."""
    beneficiaries = {each.beneficiary for each in decision.evictions}
    now = free_amounts(state, decision, ended=False)
    later = free_amounts(state, decision, ended=True)
    for facts in state.groups.values():
        members = state.members[facts.key].values()
        if facts.key in decision.placed or not all(each.is_pending for each in members):
            continue
        if fits(state, decision, facts, now, dict(decision.reservations)):
            yield f"{facts.key} waits and would fit"
        if facts.key in beneficiaries and fits(
            state, decision, facts, later, dict(decision.reservations)
        ):
            yield f"pods are evicted for {facts.key}, and those that are ending are sufficient"


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_gang_never_waits_behind_a_reservation_of_lower_priority(seed: int) -> None:
    """Nor does it evict pods while the reservation's are ending, and evictions cease."""
    random = Random(seed)
    world = OneQueue(random)
    decision = CycleResult()
    for cycle in range(CYCLES + ARRIVALS):
        if cycle < ARRIVALS and random.random() < 0.6:
            world.arrive()
        world.now += 1
        decision = decide(world.state, world.now)
        assert list(violations(world.state, decision)) == []
        world.carry_out(decision)
    assert decision.evictions == ()
