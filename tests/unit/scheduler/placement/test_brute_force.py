"""Comparison with an exhaustive search of all placements on small clusters."""

from collections.abc import Sequence
from random import Random

import pytest

from gangline.scheduler.types.types import GroupKey, NodeInfo, PlacementConstraints, PodInfo
from unit.scheduler.builders import ANYWHERE, checked_cycle, cluster, group, node, on_label, pod

INSTANCES = 200
"""In each test."""


def instance(random: Random) -> tuple[list[NodeInfo], list[PodInfo]]:
    nodes = [
        node(
            f"n{index}",
            cpu=random.randint(1, 6),
            memory=random.randint(1, 6),
            gpu=random.choice([0, 0, 2, 4]),
            labels={"pool": random.choice("ab")},
        )
        for index in range(random.randint(1, 3))
    ]
    kinds: list[tuple[int, int, int, PlacementConstraints]] = [
        (
            random.randint(1, 3),
            random.randint(0, 3),
            random.choice([0, 0, 1, 2]),
            random.choice([ANYWHERE, ANYWHERE, on_label(pool="a")]),
        )
        for _ in range(random.randint(1, 3))
    ]
    drawn = [random.choice(kinds) for _ in range(random.randint(1, 6))]
    pods = [
        pod(f"p{index}", cpu=cpu, memory=memory, gpu=gpu, constraints=where, group="g")
        for index, (cpu, memory, gpu, where) in enumerate(drawn)
    ]
    return nodes, pods


def feasible(nodes: Sequence[NodeInfo], pods: Sequence[PodInfo]) -> bool:
    """Try every placement."""
    free = [dict(each.allocatable) for each in nodes]

    def put(index: int) -> bool:
        if index == len(pods):
            return True
        shape = pods[index].shape
        for has, each in zip(free, nodes, strict=True):
            selected = set(shape.constraints.selector) <= set(each.labels)
            if selected and all(has.get(name, 0) >= amount for name, amount in shape.request):
                for name, amount in shape.request:
                    has[name] -= amount
                if put(index + 1):
                    return True
                for name, amount in shape.request:
                    has[name] += amount
        return False

    return put(0)


def placed(nodes: Sequence[NodeInfo], pods: Sequence[PodInfo]) -> bool:
    """Return whether the scheduler places the gang; the oracle checks the result."""
    return GroupKey("d/g") in checked_cycle(cluster(*nodes, group("g", len(pods)), *pods)).placed


@pytest.mark.parametrize("seed", range(5))
def test_every_small_gang_that_fits_in_any_way_is_placed(seed: int) -> None:
    random = Random(2024 + seed)
    possible = 0
    for number in range(INSTANCES):
        nodes, pods = instance(random)
        possible += (found := placed(nodes, pods))
        # What is placed fits. That the search finds what fits is looked at for some.
        if not found or number < INSTANCES // 10:
            assert feasible(nodes, pods) == found
    assert possible > INSTANCES / 8


@pytest.mark.parametrize("seed", range(2))
def test_a_gang_of_equal_pods_is_placed_whenever_it_fits(seed: int) -> None:
    random = Random(7 + seed)
    for _ in range(INSTANCES):
        nodes, pods = instance(random)
        alike = [
            pod(f"p{i}", group="g", constraints=pods[0].shape.constraints, cpu=1, gpu=1, memory=1)
            for i in range(len(pods))
        ]
        assert placed(nodes, alike) == feasible(nodes, alike)


@pytest.mark.parametrize("seed", range(2))
def test_a_further_free_node_never_keeps_a_gang_from_being_placed(seed: int) -> None:
    random = Random(11 + seed)
    for _ in range(INSTANCES):
        nodes, pods = instance(random)
        if placed(nodes, pods):
            more = node("more", cpu=random.randint(1, 6), gpu=4, memory=6, labels={"pool": "a"})
            assert placed([*nodes, more], pods)
