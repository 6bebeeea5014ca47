"""Volumes of gangs: all claims of all pods are matched together, or none is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.volumes import (
    NO_VOLUMES,
    VOLUME_AFFINITY_CONFLICT,
    ClaimInfo,
    StorageClassInfo,
    VolumeInfo,
)
from gangline.scheduler.types import (
    LabelExpression,
    NodeTerm,
    PlacementConstraints,
    PodKey,
)
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, placed, pod, using

ONCE = frozenset({"ReadWriteOnce"})
MANY = frozenset({"ReadWriteMany"})
ONE_POD = frozenset({"ReadWriteOncePod"})


def static(name: str, size: int, *hosts: str, **facts: object) -> VolumeInfo:
    """A volume that these nodes reach; without any, all nodes do."""
    here = LabelExpression("host", "In", hosts)
    terms = (NodeTerm((here,)),) if hosts else None
    return VolumeInfo(name, terms, "local", ONCE | ONE_POD, size, **facts)  # type: ignore[arg-type]


def claim(name: str, size: int = 1, **facts: object) -> ClaimInfo:
    wanted = {"storage_class": "local", "modes": ONCE, "size": size, "uid": f"uid-{name}", **facts}
    return ClaimInfo(f"d/{name}", **wanted)  # type: ignore[arg-type]


def with_storage(state: SchedulerCache, *things: ClaimInfo | VolumeInfo) -> SchedulerCache:
    storage = state.storage
    for thing in things:
        if isinstance(thing, ClaimInfo):
            storage.claims[thing.key] = thing
        else:
            storage.volumes[thing.name] = thing
    storage.classes["local"] = StorageClassInfo("local", True, can_provision=False)
    storage.classes["cloud"] = StorageClassInfo("cloud", True, driver="csi.example.com")
    storage.synced = True
    state.storage_changed()
    return state


def hosts(*names: str, cpu: float = 8) -> list[object]:
    return [node(name, cpu=cpu, labels={"host": name}) for name in names]


def on_hosts(*names: str) -> PlacementConstraints:
    return PlacementConstraints(required=(NodeTerm((LabelExpression("host", "In", names),)),))


def members(*claims: Sequence[str], **facts: object) -> list[object]:
    """A gang with one pod for each of these sets of claims."""
    pods = [using(f"g-{i}", *keys, group="g", **facts) for i, keys in enumerate(claims)]
    return [group("g", len(pods)), *pods]


def test_claims_of_a_pod_are_matched_on_one_node() -> None:
    state = cluster(*hosts("n1", "n2"), using("p", "data", "logs"))
    volumes = [static("a", 5, "n1"), static("b", 5, "n2"), static("c", 5, "n2")]
    decision = decide(with_storage(state, claim("data", 5), claim("logs", 4), *volumes))
    assert placed(decision) == {"p": "n2"}
    assert decision.volumes == {"d/data": "b", "d/logs": "c"}


def test_gang_takes_no_volume_unless_it_gets_all() -> None:
    state = cluster(*hosts("n1"), *members(["c0"], ["c1"], ["c2"]))
    claims = [claim("c0", 5), claim("c1", 5), claim("c2", 10)]
    with_storage(state, *claims, static("a", 5, "n1"), static("b", 10, "n1"))
    decision = decide(state)
    assert not decision.bindings
    assert not decision.volumes
    message = decision.pending_reasons[0].message
    assert f"0/1 nodes are available: 1 {NO_VOLUMES}. The free volumes do not suffice" in message
    with_storage(state, static("c", 7, "n1"))
    assert decide(state).volumes == {"d/c0": "a", "d/c1": "c", "d/c2": "b"}


def test_earlier_gang_moves_to_another_volume_for_a_later_one() -> None:
    # The smallest volume is the best for the first claim, and the only one for the second.
    first = using("first", "c0", age=1, constraints=on_hosts("n1"))
    second = using("second", "c1", age=2, constraints=on_hosts("n2"))
    state = cluster(*hosts("n1", "n2"), first, second)
    with_storage(state, claim("c0"), claim("c1"), static("small", 2), static("large", 9, "n1"))
    assert decide(state).volumes == {"d/c0": "large", "d/c1": "small"}


@pytest.mark.parametrize(
    ("modes", "cpu", "nodes"),
    [
        pytest.param(ONCE, 2, 1, id="one node holds both"),
        pytest.param(ONCE, 5, 0, id="a volume of one node is shared by none on another"),
        pytest.param(MANY, 5, 2, id="a volume for many nodes"),
    ],
)
def test_pods_that_share_a_claim_to_be_provisioned(
    modes: frozenset[str], cpu: float, nodes: int
) -> None:
    state = cluster(*hosts("n1", "n2"), *members(["c"], ["c"], cpu=cpu))
    decision = decide(with_storage(state, claim("c", storage_class="cloud", modes=modes)))
    assert len(set(placed(decision).values())) == nodes
    if not nodes:
        assert f"1 {VOLUME_AFFINITY_CONFLICT}" in decision.pending_reasons[0].message


def test_pod_that_shares_an_assumed_claim_follows_it() -> None:
    state = cluster(*hosts("n1", "n2"), using("p", "c", cpu=5))
    with_storage(state, claim("c", storage_class="cloud"))
    first = decide(state)
    state.assume(first.bindings[0].pod, first.bindings[0].node, first.volumes)
    state.set_pod(using("q", "c", cpu=5))
    assert not decide(state).bindings
    state.set_pod(using("q", "c", cpu=2))
    assert placed(decide(state)) == {"q": first.bindings[0].node}


def test_shared_claim_takes_one_volume_that_all_of_its_nodes_reach() -> None:
    state = cluster(*hosts("n1", "n2"), *members(["c"], ["c"], cpu=5))
    with_storage(state, claim("c"), static("a", 1, "n1"), static("b", 1, "n2"))
    assert not decide(state).bindings
    with_storage(state, static("zonal", 9, "n1", "n2"))
    assert decide(state).volumes == {"d/c": "zonal"}


def test_static_volumes_come_before_provisioned_ones_and_both_serve_one_gang() -> None:
    state = cluster(*hosts("n1"), *members(["c0"], ["c1"]))
    either = [claim(name, storage_class="cloud") for name in ("c0", "c1")]
    free = VolumeInfo("v", None, "cloud", ONCE, 1)
    decision = decide(with_storage(state, *either, free))
    assert len(decision.bindings) == 2
    assert list(decision.volumes.values()) == ["v"]


def test_reservation_of_the_first_gang_keeps_its_volumes() -> None:
    big = [group("g", 2, 1), *(using(f"g-{i}", f"c{i}", cpu=8, group="g") for i in range(2))]
    state = cluster(*hosts("n1", "n2"), pod("runs", cpu=4, on="n2", max_run_time_s=9.0), *big)
    state.set_pod(using("late", "c2", cpu=1, age=5))
    claims = [claim(f"c{i}") for i in range(3)]
    with_storage(state, *claims, static("v1", 1), static("v2", 1))
    assert not placed(decide(state))
    with_storage(state, static("v3", 1))
    state.remove_pod(PodKey("d/g-1"))
    state.set_pod(using("g-1", "c1", cpu=8, group="g"))
    assert decide(state).volumes.keys() <= {"d/c2"}


def test_large_gang_is_matched_where_packing_fails() -> None:
    # Each pod is allowed on its own node and on two others, so that others are packed there.
    drawn, count = Random(0), 24
    names = [f"n{index:02}" for index in range(count)]
    own = drawn.sample(names, count)
    pods = [
        using(f"g-{i}", f"c{i}", group="g", constraints=on_hosts(own[i], *drawn.sample(names, 2)))
        for i in range(count)
    ]
    state = cluster(*hosts(*names), group("g", count), *pods)
    with_storage(state, *(claim(f"c{i}") for i in range(count)))
    with_storage(state, *(static(f"v{name}", 1, name) for name in names))
    assert len(decide(state).bindings) == count


@dataclass(frozen=True)
class Scene:
    sizes: tuple[int, ...]
    """Size of each claim."""
    pods: tuple[tuple[int, ...], ...]
    """The claims of each pod."""
    volumes: tuple[tuple[int, frozenset[int]], ...]
    """Size, and the nodes that reach it."""
    capacity: tuple[int, ...]
    """Number of pods that each node holds."""


@some.composite
def scenes(draw: some.DrawFn) -> Scene:
    nodes = draw(some.integers(1, 3))
    claims = draw(some.integers(1, 4))
    on_nodes = some.frozensets(some.integers(0, nodes - 1), min_size=1)
    used = some.lists(some.integers(0, claims - 1), min_size=1, max_size=2, unique=True)
    return Scene(
        tuple(draw(some.lists(some.integers(1, 3), min_size=claims, max_size=claims))),
        tuple(map(tuple, draw(some.lists(used, min_size=1, max_size=4)))),
        tuple(draw(some.lists(some.tuples(some.integers(1, 3), on_nodes), max_size=5))),
        tuple(draw(some.lists(some.integers(1, 4), min_size=nodes, max_size=nodes))),
    )


def solutions(scene: Scene) -> Iterator[tuple[int, ...]]:
    """Yield all assignments of pods to nodes in which each claim can have a volume of its own."""
    for rows in product(range(len(scene.capacity)), repeat=len(scene.pods)):
        if all(rows.count(row) <= most for row, most in enumerate(scene.capacity)):
            used = sorted({claim for pod in scene.pods for claim in pod})
            for volumes in product(range(len(scene.volumes)), repeat=len(used)):
                if len(set(volumes)) == len(used) and all(
                    scene.volumes[volume][0] >= scene.sizes[claim]
                    and scene.volumes[volume][1]
                    >= {row for row, pod in zip(rows, scene.pods, strict=True) if claim in pod}
                    for claim, volume in zip(used, volumes, strict=True)
                ):
                    yield rows
                    break


@settings(max_examples=25)
@given(scenes())
@example(Scene((1, 1, 2), ((0,), (1,), (2,)), ((1, frozenset({0})), (2, frozenset({0}))), (3,)))
def test_gang_starts_exactly_if_some_matching_exists(scene: Scene) -> None:
    names = [f"n{index}" for index in range(len(scene.capacity))]
    state = cluster(
        *(node(n, cpu=c, labels={"host": n}) for n, c in zip(names, scene.capacity, strict=True)),
        *members(*([f"c{index}" for index in pod] for pod in scene.pods)),
    )
    with_storage(
        state,
        *(claim(f"c{index}", size) for index, size in enumerate(scene.sizes)),
        *(
            static(f"v{index}", size, *(names[row] for row in sorted(rows)))
            for index, (size, rows) in enumerate(scene.volumes)
        ),
    )
    decision = decide(state)
    assert bool(decision.bindings) == any(True for _ in solutions(scene))
    if decision.bindings:
        assert decision.volumes.keys() == {f"d/c{index}" for pod in scene.pods for index in pod}


def test_extra_pods_of_one_shape_are_tried_each_with_its_own_claim() -> None:
    gang = [group("g", 1), *(using(f"g-{i}", f"c{i}", group="g") for i in range(4))]
    large = [claim("c1", 9), claim("c2", 9)]
    state = with_storage(cluster(*hosts("n1"), *gang), claim("c0"), *large, claim("c3"))
    with_storage(state, *(static(f"v{i}", size) for i, size in enumerate((1, 9, 2))))
    assert placed(decide(state)).keys() == {"g-0", "g-1", "g-3"}
