"""Victims that only a part of the search finds: each way, the prefix, and the choice of nodes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption import row_options
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally, ReclaimState
from gangline.scheduler.preemption.row_options import (
    RankedOption,
    RowOption,
    RowOptions,
    RowSearch,
    VictimSelection,
)
from gangline.scheduler.preemption.victims import (
    NO_COST,
    Clearing,
    EndingPods,
    EvictionCost,
    EvictionUnit,
    RunningGang,
    eviction_units,
    placed_gangs,
    pods_to_evict,
    without_overlap,
)
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types import (
    NodeInfo,
    NodeName,
    PodInfo,
    PodKey,
    SubgroupRule,
)
from unit.scheduler.builders import cluster, group, node, on_label, pod

NOW = 10_000.0


@dataclass
class World:
    """Nodes full of gangs that one gang may evict."""

    rows: dict[str, int]
    units: list[EvictionUnit]
    options: RowOptions
    work: ScratchAllocation
    chosen: VictimSelection

    def unit(self, name: str) -> EvictionUnit:
        return next(each for each in self.units if each.gang.id == f"d/{name}")

    def choose(self, *names: str) -> None:
        """Count gangs as evicted, as the search does."""
        for name in names:
            unit = self.unit(name)
            self.work.end_pods(self.options.clearing.pods(unit), ())
            self.options.clearing.add_freed(self.work.free, [unit])
            self.chosen.units.append(unit)
            self.chosen.pods.update(each.key for each in unit.pods)


def world(nodes: Sequence[NodeInfo], **gangs: Sequence[PodInfo]) -> World:
    infos = {name: group(name, len(pods)) for name, pods in gangs.items()}
    state = cluster(*nodes, *infos.values(), *(each for pods in gangs.values() for each in pods))
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    rights = EvictionRights(ReclaimState(tree), "default", tree.vector({}), {})
    units = [
        unit
        for name, pods in gangs.items()
        for unit in eviction_units(
            RunningGang(infos[name].key, "default", 0, tuple(pods), infos[name]),
            0,
            NOW,  # type: ignore[arg-type]
        )
    ]
    units.sort(key=lambda unit: unit.order)
    clearing = Clearing(state, ScratchAllocation(state.nodes), EndingPods(state))
    freeable = clearing.after(without_overlap(units)).free - clearing.base.free
    options = RowOptions(clearing, RowSearch(clearing, rights, units), units, freeable)
    work = clearing.base.fork(clearing.base.free.copy())
    rows = {str(name): row for name, row in state.nodes.rows.items()}
    return World(rows, units, options, work, VictimSelection([], set(), EvictionTally()))


def costs(name: str, *asked: tuple[str, int], cost: float = 0) -> list[PodInfo]:
    """The pods of a gang: the node and the devices of each."""
    return [
        pod(f"{name}-{n}", cpu=0, gpu=gpu, group=name, on=on, started_at=NOW - cost)
        for n, (on, gpu) in enumerate(asked)
    ]


def devices(**nodes: int) -> list[NodeInfo]:
    return [node(name, gpu=gpu) for name, gpu in nodes.items()]


def mask(found: World, *names: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    accepted = np.zeros(len(found.options.clearing.state.nodes.infos), dtype=bool)
    accepted[[found.rows[name] for name in names]] = True
    return accepted


def test_only_rows_of_the_region_are_searched() -> None:
    found = world(devices(n0=1, n1=1, n2=1), a=costs("a", ("n0", 1), ("n1", 1), ("n2", 1)))
    found.work.within = mask(found, "n1")
    assert found.options.rows_for(found.work, pod("w", cpu=0, gpu=1)) == [found.rows["n1"]]


def test_rows_that_lack_something_after_all_evictions_are_not_searched() -> None:
    found = world(devices(n0=1, n1=2), a=costs("a", ("n0", 1), ("n1", 1)))
    assert found.options.rows_for(found.work, pod("w", cpu=0, gpu=2)) == [found.rows["n1"]]


def test_gain_is_the_number_of_further_pods_on_all_rows_that_units_free() -> None:
    """On n1 one device is free and two are freed, which is one pod of two devices more."""
    found = world(
        devices(n0=2, n1=3),
        a=costs("a", ("n0", 1), ("n1", 2)),
        b=costs("b", ("n0", 1)),
    )
    shape = found.options.of(found.work, found.chosen, pod("w", cpu=0, gpu=2))
    option = shape.by_row[found.rows["n0"]]
    assert {unit.gang.id for unit in option.option.units} == {"d/a", "d/b"}
    assert option.gain == 2


def test_pods_that_fit_without_an_eviction_are_no_gain() -> None:
    found = world(devices(n0=1, n1=5), a=costs("a", ("n0", 1), ("n1", 2)))
    shape = found.options.of(found.work, found.chosen, pod("w", cpu=0, gpu=1))
    option = shape.by_row[found.rows["n0"]]
    assert option.gain == 3


@pytest.mark.parametrize("outside", ["region", "selector"])
def test_rows_that_the_pod_may_not_use_are_no_gain(outside: str) -> None:
    nodes = [node("n0", gpu=1, labels={"kind": "x"}), node("n1", gpu=1)]
    found = world(nodes, a=costs("a", ("n0", 1), ("n1", 1)))
    wants = pod("w", cpu=0, gpu=1)
    if outside == "selector":
        wants = pod("w", cpu=0, gpu=1, constraints=on_label(kind="x"))
    else:
        found.work.within = mask(found, "n0")
    shape = found.options.of(found.work, found.chosen, wants)
    assert shape.by_row.keys() == {found.rows["n0"]}
    option = shape.by_row[found.rows["n0"]]
    assert option.gain == 1


def test_gains_are_counted_anew_after_a_change_of_free_amounts() -> None:
    """The device of u on n1 completes a pod of two once that of v is free."""
    found = world(
        devices(n0=2, n1=3),
        u=costs("u", ("n0", 2), ("n1", 1)),
        v=costs("v", ("n1", 1), cost=50),
        w=costs("w", ("n1", 1), cost=90),
    )
    shape = found.options.of(found.work, found.chosen, pod("p", cpu=0, gpu=2))
    before = shape.by_row[found.rows["n0"]]
    assert before.gain == 1
    found.choose("v")
    shape.update(RowOption(found.rows["n1"], (found.unit("v"),), NO_COST))
    after = shape.by_row[found.rows["n1"]]
    assert [unit.gang.id for unit in after.option.units] == ["d/u"]
    assert after.gain == 2


def test_number_of_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_options, "BATCH", 1)
    monkeypatch.setattr(row_options, "MAX_BATCHES", 2)
    names = [f"n{n}" for n in range(5)]
    found = world(devices(**dict.fromkeys(names, 1)), a=costs("a", *((name, 1) for name in names)))
    shape = found.options.of(found.work, found.chosen, pod("p", cpu=0, gpu=1))
    shape.by_row = dict.fromkeys(shape.by_row)  # none of these is allowed
    monkeypatch.setattr(type(shape), "_search", lambda self, row: self.by_row.update({row: None}))
    assert shape.best(1, by_ratio=True) is None
    assert len(shape.by_row) == 2


@pytest.mark.parametrize("seed", range(8))
def test_option_for_a_single_pod_is_the_best_of_all_rows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are left out only if they cost more; the position of a row breaks ties."""
    monkeypatch.setattr(row_options, "BATCH", 4)
    draw = random.Random(seed)
    names = [f"n{n}" for n in range(9)]
    gangs = {
        name: costs(name, *((on, 1) for on in draw.sample(names, 2)), cost=draw.choice([0, 5, 9]))
        for name in "abcdefg"
    }
    found = world(devices(**dict.fromkeys(names, 4)), **gangs)
    for devices_of_pod in (3, 4):
        wants = pod("p", cpu=0, gpu=devices_of_pod)
        found.work.free[:, :] = np.minimum(found.work.free, draw.choice([1, 2]))
        expected = found.options.of(found.work, found.chosen, wants).best(1, by_ratio=False)
        assert found.options.cheapest(found.work, found.chosen, wants) == expected


def ranked(gain: int, name: int, **cost: float) -> RankedOption:
    return RankedOption(RowOption(0, (), NO_COST._replace(**cost)), gain, (name,))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [name for name in EvictionCost._fields if "tier" not in name])
def test_cost_counts_for_each_pod_that_is_made_to_fit(what: str) -> None:
    one, four = ranked(1, 0, **{what: 2}), ranked(4, 1, **{what: 6})
    assert four.key(4, by_ratio=True) < one.key(4, by_ratio=True)
    assert one.key(4, by_ratio=False) < four.key(4, by_ratio=False)
    # No more pods count than still lack a node.
    assert one.key(2, by_ratio=True) < four.key(2, by_ratio=True)


def test_option_of_one_pod_is_not_taken_for_one_of_two() -> None:
    one, three = ranked(1, 0, broken=1), ranked(3, 1, broken=2)
    assert three.key(3, by_ratio=True) < one.key(3, by_ratio=True)


def cheapest_victims(state: SchedulerCache, claimant: PodInfo) -> list[str]:
    """Return the cheapest units on the node ``n`` that make the claimant fit there."""
    scratch, tree = ScratchAllocation(state.nodes), QueueTree.of(state)
    asked = tree.request_vector(claimant.shape.request)
    rights = EvictionRights(ReclaimState(tree), "default", asked, state.budgets)
    gangs = [known.gang for _, known in placed_gangs(state) if known.gang is not None]
    units = [unit for gang in gangs for unit in eviction_units(gang, 0, 0.0)]
    units.sort(key=lambda unit: unit.order)
    search = RowSearch(Clearing(state, scratch, EndingPods(state)), rights, units)
    chosen = VictimSelection([], set[PodKey](), EvictionTally())
    found = search.option(scratch, chosen, claimant, state.nodes.rows[NodeName("n")])
    return [each.key.removeprefix("d/") for each in pods_to_evict(found.units)]


def rule(label: str, minimum: int) -> SubgroupRule:
    selector = Selector((Requirement(label, "exists"),))
    return SubgroupRule(label, selector, 2, minimum, (label,))


def pair(label: str, number: int, cpu: float = 0.5) -> list[PodInfo]:
    return [
        pod(f"{label}{number}-{n}", cpu=cpu, group="low", on="n", labels=((label, str(number)),))
        for n in range(2)
    ]


def test_equal_subgroups_of_another_rule_are_tried() -> None:
    pods = [*pair("a", 0), *pair("a", 1), *pair("b", 0)]
    low = group("low", 2, subgroups=(rule("a", 1), rule("b", 0)))
    claimant = pod("high", cpu=2)
    state = cluster(node("n", cpu=3), low, *pods, claimant)
    assert cheapest_victims(state, claimant) == ["a0-0", "a0-1", "b0-0", "b0-1"]
