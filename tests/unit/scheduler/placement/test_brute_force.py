"""Comparison with an exhaustive search of all placements on small clusters."""

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    InterPodRules,
    LabelExpression,
    NodeInfo,
    NodeName,
    NodeTerm,
    PlacementConstraints,
    PodBinding,
    PodInfo,
    PodTerm,
    SpreadTerm,
    TaintInfo,
    TolerationInfo,
)
from unit.scheduler.builders import (
    ANYWHERE,
    checked_cycle,
    cluster,
    decide,
    group,
    node,
    on_label,
    pod,
)
from unit.scheduler.oracle.check import violations

INSTANCES = 120
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


@pytest.mark.parametrize("seed", range(3))
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


CONSTRAINED_INSTANCES = 40
"""In each test."""
FULL = TaintInfo("full", "", "NoSchedule")


def _means(app: str) -> Selector:
    return Selector((Requirement("app", "=", (app,)),))


def constraints(random: Random) -> PlacementConstraints:
    """Draw what a kind of pods wants; most want little."""
    near = PodTerm(_means(random.choice("xy")), random.choice(["zone", "host"]))
    apart = PodTerm(_means(random.choice("xy")), random.choice(["zone", "host"]))
    spread = SpreadTerm(PodTerm(_means(random.choice("xy")), random.choice(["zone", "host"])))
    relations = random.choice(
        [
            None,
            None,
            None,
            InterPodRules(affinity=(near,)),
            InterPodRules(anti_affinity=(apart,)),
            InterPodRules(spread=(spread,)),
        ]
    )
    term = NodeTerm((LabelExpression("zone", random.choice(["In", "NotIn"]), ("a",)),))
    return PlacementConstraints(
        required=random.choice([None, None, None, (term,)]),
        tolerations=random.choice([(), (TolerationInfo("full", "Exists"),)]),
        inter_pod=relations,
    )


def constrained_instance(random: Random) -> tuple[list[NodeInfo], list[PodInfo]]:
    """Draw a few nodes, perhaps a pod that runs already, and a gang of a few kinds of pods."""
    nodes = [
        node(
            f"n{index}",
            cpu=random.randint(1, 5),
            gpu=random.choice([0, 2, 4]),
            labels={"zone": random.choice("ab"), "host": f"n{index}"},
            taints=random.choice([(), (), (FULL,)]),
        )
        for index in range(random.randint(1, 3))
    ]
    kinds = [
        {
            "cpu": random.randint(1, 3),
            "gpu": random.choice([0, 0, 1, 2]),
            "port": random.choice([0, 0, 0, 80]),
            "constraints": constraints(random),
            "labels": (("app", random.choice("xy")),),
        }
        for _ in range(random.randint(1, 3))
    ]
    pods = [
        pod(f"p{index}", group="g", **random.choice(kinds))  # type: ignore[arg-type]
        for index in range(random.randint(1, 5))
    ]
    if random.random() < 0.4:
        there = random.choice(kinds)
        pods.append(pod("there", cpu=0, on="n0", labels=there["labels"]))  # type: ignore[arg-type]
    return nodes, pods


def constrained_feasible(nodes: Sequence[NodeInfo], pods: Sequence[PodInfo]) -> bool:
    """Try every order of the pods and every node for each."""
    dead: set[tuple[tuple[str, str], ...]] = set()

    def extend(put: tuple[tuple[str, str], ...], left: frozenset[str]) -> bool:
        if not left:
            return True
        known = tuple(sorted((_likeness(pods, name), on) for name, on in put))
        if known in dead:
            return False
        tried = set()
        for name in sorted(left):
            for each in nodes:
                step = (_likeness(pods, name), str(each.name))
                if step in tried:
                    continue
                tried.add(step)
                further = (*put, (name, str(each.name)))
                if _may_be(nodes, pods, further) and extend(further, left - {name}):
                    return True
        dead.add(known)
        return False

    return extend((), frozenset(each.key for each in pods if each.node is None))


def _likeness(pods: Sequence[PodInfo], name: str) -> str:
    found = next(each for each in pods if each.key == name)
    return f"{id(found.shape)} {found.labels}"


def _may_be(
    nodes: Sequence[NodeInfo], pods: Sequence[PodInfo], put: Sequence[tuple[str, str]]
) -> bool:
    """Return whether the last pod may be placed there, given the others."""
    before = dict(put[:-1])
    there = [each for each in pods if each.node is not None]
    running = [
        pod_on(each, before[each.key]) if each.key in before else each
        for each in pods
        if each.node is None
    ]
    state: SchedulerCache = cluster(*nodes, group("g", 0), *there, *running)
    name, on = put[-1]
    last = state.pods[next(each.key for each in pods if each.key == name)]
    binding = PodBinding(last.key, last.uid, NodeName(on), GroupKey("d/g"))
    return not list(violations(state, CycleResult(bindings=(binding,))))


def pod_on(each: PodInfo, on: str) -> PodInfo:
    """Return the pod as it runs on a node."""
    return replace(each, node=NodeName(on), phase="Running")


def constrained_placed(nodes: Sequence[NodeInfo], pods: Sequence[PodInfo]) -> bool:
    """Return whether the scheduler places the gang; the oracle checks the result."""
    size = sum(each.node is None for each in pods)
    state = cluster(*nodes, group("g", size), *pods)
    decision = decide(state)
    assert not list(violations(state, decision))
    return GroupKey("d/g") in decision.placed


@pytest.mark.parametrize("seed", range(2))
def test_every_small_gang_with_constraints_that_fits_in_any_way_is_placed(seed: int) -> None:
    random = Random(99 + seed)
    possible = 0
    for number in range(CONSTRAINED_INSTANCES):
        nodes, pods = constrained_instance(random)
        possible += (found := constrained_placed(nodes, pods))
        # What is placed fits. That the search finds what fits is looked at for some.
        if not found or number < CONSTRAINED_INSTANCES // 10:
            assert constrained_feasible(nodes, pods) == found
    assert possible > CONSTRAINED_INSTANCES / 8
