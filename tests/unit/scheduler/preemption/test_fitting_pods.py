"""Counted slots agree with placements, and spare victims without them."""

from random import Random

import numpy as np
import pytest

from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption import gang_search
from gangline.scheduler.preemption.fitting_pods import (
    SurplusSlots,
    amounts_decide,
    may_fit,
)
from gangline.scheduler.preemption.gang_search import place_needed
from gangline.scheduler.preemption.victims import (
    Clearing,
    EndingPods,
    eviction_units,
    placed_gangs,
)
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.types import NetworkTopologyRule
from unit.scheduler.builders import cluster, decide, group, node, on_label, pod

NOW = 100.0


@pytest.mark.parametrize("seed", range(12))
def test_slots_are_refused_exactly_where_equal_pods_find_no_nodes(seed: int) -> None:
    draw = Random(seed)
    names = [f"n{number}" for number in range(6)]
    facts = [node(name, cpu=8, gpu=4, labels={"zone": draw.choice("ab")}) for name in names]
    running = [
        (group(f"r{number}", 2), [pod(f"r{number}-{i}", group=f"r{number}", gpu=draw.choice([1, 2]),
         on=draw.choice(names)) for i in range(2)])
        for number in range(5)
    ]  # fmt: skip
    constraints = on_label(zone="a") if draw.random() < 0.5 else on_label()
    size = draw.randint(2, 12)
    wanting = [pod(f"w-{i}", group="w", gpu=1, constraints=constraints) for i in range(size)]
    state = cluster(
        *facts, *(thing for info, pods in running for thing in (info, *pods)),
        group("w", size), *wanting,
    )  # fmt: skip
    (gang,), _ = pending_gangs(state, NOW)
    clearing = Clearing(state, ScratchAllocation(state.nodes), EndingPods(state))
    units = [
        unit
        for _, placed in placed_gangs(state)
        if placed.gang is not None
        for unit in eviction_units(placed.gang, 0, NOW)
    ]
    mask = np.array([draw.random() < 0.8 for _ in state.nodes.infos])
    region = mask if draw.random() < 0.5 else None
    assert amounts_decide(clearing.base, gang)
    victims = list(units)
    slots = SurplusSlots(clearing, victims, gang, region)
    fits = place_needed(clearing.after(victims), gang, region) is not None
    for unit in draw.sample(units, len(units)):
        rest = [other for other in victims if other is not unit]
        after = clearing.after(rest)
        can_spare = place_needed(clearing.after(rest), gang, region) is not None
        assert may_fit(state.nodes, after.free, gang, region) == can_spare
        if fits:
            assert slots.can_spare([unit]) == can_spare
        if can_spare:
            victims = rest
            slots.spare([unit])


def test_needless_victims_of_equal_pods_are_spared_without_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search takes the cheapest gang of each node first, though larger ones follow."""
    monkeypatch.setattr(gang_search, "MAX_SPARED", 0)
    nodes = [node(f"n{number}", cpu=8, gpu=4) for number in range(3)]
    running = [
        fact
        for number in range(3)
        for name, gpu, started_at in ((f"small{number}", 1, NOW), (f"large{number}", 3, NOW - 9))
        for fact in (
            group(name, 1),
            pod(f"{name}-0", group=name, gpu=gpu, cpu=0, on=f"n{number}", started_at=started_at),
        )
    ]
    wanting = [pod(f"w-{number}", group="w", gpu=1, cpu=0) for number in range(7)]
    state = cluster(*nodes, *running, group("w", 7, priority=9), *wanting)
    evicted = {str(eviction.group) for eviction in decide(state, NOW).evictions}
    assert evicted == {"d/large0", "d/large1", "d/small0"}


def test_amounts_do_not_decide_where_a_domain_must_hold_the_gang() -> None:
    rule = NetworkTopologyRule(hard=True)
    members = [pod(f"w-{number}", group="w") for number in range(2)]
    state = cluster(node("n0"), group("w", 2, network=rule), *members)
    (gang,), _ = pending_gangs(state, NOW)
    assert not amounts_decide(ScratchAllocation(state.nodes), gang)
