"""What a gang may take from queues: shares, limits, guarantees and budgets, one unit at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from random import Random

import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.rights import (
    EvictionRights,
    EvictionTally,
    QueueStanding,
    ReclaimState,
)
from gangline.scheduler.preemption.victims import EvictionUnit, RunningGang, eviction_units
from gangline.scheduler.queueing.queue_tree import TOLERANCE, QueueTree, Vector
from gangline.scheduler.types import DisruptionBudgetInfo, QueueInfo
from unit.scheduler.builders import GPU, cluster, group, node, pod, request

NODE = node("n", cpu=8, memory=64, gpu=8)


@dataclass
class Queues:
    """Queues and running gangs on one node of 8 processors and 8 devices."""

    state: SchedulerCache
    gangs: dict[str, list[EvictionUnit]]

    def __post_init__(self) -> None:
        state = self.state
        self.tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
        self.reclaim = ReclaimState(self.tree)

    def rights(
        self,
        queue: str,
        budgets: Mapping[str, DisruptionBudgetInfo] | None = None,
        **asked: float,
    ) -> EvictionRights:
        wanted = self.tree.vector(dict(request(pods=0, **asked)))  # type: ignore[arg-type]
        return EvictionRights(self.reclaim, queue, wanted, budgets or {})

    def whole(self, name: str) -> EvictionUnit:
        return next(unit for unit in self.gangs[name] if unit.breaks_gang)

    def spare(self, name: str) -> list[EvictionUnit]:
        return [unit for unit in self.gangs[name] if not unit.breaks_gang]


def queues(
    *infos: QueueInfo, pending: dict[str, dict[str, float]] | None = None, **gangs: object
) -> Queues:
    """Make queues; a gang is its queue, its minimum, and the requests of its pods."""
    facts, units = [], {}
    for name, (queue, minimum, *asked) in gangs.items():  # type: ignore[misc]
        info = group(name, minimum, queue=queue)
        pods = tuple(
            pod(f"{name}-{n}", group=name, on="n", labels=(("app", name),), **{"cpu": 0, **each})
            for n, each in enumerate(asked)
        )
        facts += [info, *pods]
        units[name] = eviction_units(RunningGang(f"d/{name}", queue, 0, pods, info), 0, 0.0)
    for queue, each in (pending or {}).items():
        facts += [group(f"of-{queue}", 1, queue=queue)]
        facts += [pod(f"of-{queue}-0", group=f"of-{queue}", **{"cpu": 0, **each})]  # type: ignore[arg-type]
    return Queues(cluster(NODE, *infos, *facts), units)


HALF = (
    QueueInfo("a", deserved=request(cpu=4, gpu=4, pods=0)),
    QueueInfo("b", deserved=request(cpu=4, gpu=4, pods=0)),
)
WANTS = {"a": {"cpu": 4.0, "gpu": 4}}


def taken(world: Queues, rights: EvictionRights, *names: str) -> list[bool]:
    tally = EvictionTally()
    return [rights.add(tally, world.whole(name)) for name in names]


def test_a_claim_is_judged_by_devices_first() -> None:
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"cpu": 6, "gpu": 6}))
    columns = world.tree.columns
    assert world.rights("a", cpu=1, gpu=1).decisive_column(world.whole("x")) == columns[GPU]
    assert world.rights("a", cpu=1).decisive_column(world.whole("x")) == columns["cpu"]


def test_resources_that_a_victim_does_not_have_do_not_judge_it() -> None:
    """The claim borrows devices, and the victim has none."""
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"cpu": 6}), y=("b", 1, {"cpu": 1, "gpu": 6}))
    rights = world.rights("a", cpu=1, gpu=5)
    assert rights.decisive_column(world.whole("x")) == world.tree.columns["cpu"]
    assert rights.decisive_column(world.whole("y")) is None
    assert taken(world, rights, "x") == [True]
    assert taken(world, rights, "y") == [False]


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        pytest.param({"gpu": 4}, True, id="up to its share"),
        pytest.param({"gpu": 5}, False, id="beyond its share"),
        pytest.param({"memory": 1}, False, id="what nobody owes"),
        pytest.param({"cpu": 5, "gpu": 1}, True, id="borrowed processors and an owed device"),
    ],
)
def test_queue_claims_within_its_own_share(asked: dict[str, float], may: bool) -> None:
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"cpu": 8, "gpu": 8}))
    rights = world.rights("a", **asked)
    assert bool(rights.owing_queues()) == may
    assert rights.may_ever_take(world.whole("x")) == may
    assert taken(world, rights, "x") == [may]


def test_queue_below_its_share_claims_nothing_if_its_parent_borrows() -> None:
    top = QueueInfo("top", deserved=request(gpu=2, pods=0))
    inner = QueueInfo("a", parent="top", deserved=request(gpu=2, pods=0))
    sibling = QueueInfo("s", parent="top")
    b = QueueInfo("b", deserved=request(gpu=2, pods=0))
    world = queues(
        top, inner, sibling, b, pending={"a": {"gpu": 1}},
        s=("s", 1, {"gpu": 2}), x=("b", 1, {"gpu": 3}),
    )  # fmt: skip
    assert not world.rights("a", gpu=1).may_ever_take(world.whole("x"))
    assert world.rights("a", gpu=1).may_ever_take(world.whole("s"))


def test_victims_end_where_their_queue_is_within_its_share() -> None:
    world = queues(
        *HALF, pending=WANTS, x=("b", 1, {"gpu": 1}), y=("b", 1, {"gpu": 1}), z=("b", 1, {"gpu": 3})
    )
    rights = world.rights("a", gpu=3)
    assert taken(world, rights, "x", "y") == [True, False]
    assert taken(world, rights, "z") == [True]
    # The last and largest one may end while the others are above the share.
    assert taken(world, rights, "z", "x") == [True, False]


@pytest.mark.parametrize(("guarantee", "may"), [(4, True), (5, False), (8, False)])
def test_guarantee_of_a_queue_stays(guarantee: int, may: bool) -> None:
    b = QueueInfo(
        "b",
        deserved=request(gpu=2, pods=0),
        guarantee=request(cpu=guarantee, pods=0),
    )
    world = queues(
        HALF[0],
        b,
        pending=WANTS,
        x=("b", 1, {"cpu": 4, "gpu": 2}),
        y=("b", 1, {"cpu": 4, "gpu": 2}),
    )
    assert taken(world, world.rights("a", gpu=2), "x") == [may]


def test_evictions_that_were_decided_count_as_done() -> None:
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"gpu": 2}), y=("b", 1, {"gpu": 3}))
    assert taken(world, world.rights("a", gpu=2), "x") == [True]
    world.reclaim.add_expected("d/other", "a", request(gpu=3, pods=0))
    assert taken(world, world.rights("a", gpu=2), "x") == [False]
    assert taken(world, world.rights("a", gpu=1), "x") == [True]
    world.reclaim.remove_expected("d/other")
    assert taken(world, world.rights("a", gpu=2), "x") == [True]
    for each in world.whole("y").pods:
        world.reclaim.add_leaving("b", each)
    assert taken(world, world.rights("a", gpu=2), "x") == [False]


def test_expected_and_leaving_pods_of_unknown_queues_change_nothing() -> None:
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"gpu": 8}))
    world.reclaim.add_expected("d/other", "gone", request(gpu=8, pods=0))
    world.reclaim.add_leaving("gone", pod("p", gpu=8))
    assert taken(world, world.rights("a", gpu=4), "x") == [True]


LIMITED = QueueInfo("q", capability=request(cpu=6, gpu=4, pods=0))


def limited(*infos: QueueInfo) -> Queues:
    return queues(
        *(infos or (LIMITED,)),
        x=("q", 1, {"cpu": 3}),
        y=("q", 1, {"cpu": 2, "gpu": 1}),
        z=("default", 1, {"cpu": 1, "gpu": 1}),
    )


@pytest.mark.parametrize("above", [(), (QueueInfo("q", parent="top"),)], ids=["own", "parent"])
def test_limit_must_be_eased_by_victims_of_the_queue(above: tuple[QueueInfo, ...]) -> None:
    infos = (QueueInfo("top", capability=LIMITED.capability), *above) if above else ()
    world = limited(*infos)
    limit, cpu = ("top" if above else "q"), world.tree.columns["cpu"]
    rights = world.rights("q", cpu=4)
    assert rights.excess[limit, cpu] == 3000
    assert set(rights.excess) <= {("q", cpu), ("top", cpu)}
    tally = EvictionTally()
    assert not rights.covers_limits(tally)
    assert [rights.eases_limit(world.whole(name), tally) for name in "xyz"] == [True, True, False]
    assert rights.add(tally, world.whole("y"))
    assert not rights.covers_limits(tally)
    assert rights.add(tally, world.whole("x"))
    assert rights.covers_limits(tally)
    assert not rights.eases_limit(world.whole("x"), tally)
    assert rights.could_cover_limits([world.whole("x")])
    assert not rights.could_cover_limits([world.whole("y"), world.whole("z")])


def test_victims_without_the_lacking_resource_do_not_ease_a_limit() -> None:
    world = limited()
    rights = world.rights("q", gpu=4)
    assert rights.excess == {("q", world.tree.columns[GPU]): 1.0}
    assert not rights.eases_limit(world.whole("x"), EvictionTally())
    assert rights.eases_limit(world.whole("y"), EvictionTally())


def test_ending_pods_of_a_queue_ease_its_limit() -> None:
    world = limited()
    for each in world.whole("x").pods:
        world.reclaim.add_leaving("q", each)
    assert world.rights("q", cpu=4).excess == {}


def test_budget_allows_so_many_pods_of_all_units_together() -> None:
    world = queues(x=("default", 1, {"cpu": 1}, {"cpu": 1}), y=("default", 1, {"cpu": 1}))
    every = DisruptionBudgetInfo("d/all", "d", parse_label_selector("app in (x, y)"), 2)
    rights = world.rights("default", {"d/all": every}, cpu=1)
    assert taken(world, rights, "x") == [True]
    assert taken(world, rights, "x", "y") == [True, False]
    assert rights.may_ever_take(world.whole("x"))
    strict = DisruptionBudgetInfo("d/all", "d", parse_label_selector("app=x"), 1)
    rights = world.rights("default", {"d/all": strict}, cpu=1)
    assert not rights.may_ever_take(world.whole("x"))
    assert rights.may_ever_take(world.whole("y"))


def test_gang_shrinks_to_its_minimum_and_not_below() -> None:
    world = queues(
        x=("default", 1, {"cpu": 1}, {"cpu": 1}, {"cpu": 1}), y=("default", 0, {"cpu": 1})
    )
    rights, tally = world.rights("default", cpu=1), EvictionTally()
    first, second, third = world.spare("x")
    assert rights.add(tally, first)
    assert rights.add(tally.copy(), second)
    assert rights.add(tally, world.spare("y")[0])
    assert rights.add(tally, second)
    assert not rights.add(tally, third)


def test_guarantee_of_one_device_stays() -> None:
    shares = {"deserved": request(gpu=2, pods=0), "guarantee": request(gpu=1, pods=0)}
    world = queues(HALF[0], QueueInfo("b", **shares), pending=WANTS, x=("b", 1, {"gpu": 4}))
    assert taken(world, world.rights("a", gpu=2), "x") == [False]


def test_limit_that_usage_exceeds_counts_only_for_what_a_gang_asks_for() -> None:
    world = limited(QueueInfo("q", capability=request(cpu=4, gpu=4, pods=0)))
    assert world.rights("q", gpu=1).excess == {}
    assert world.rights("q", cpu=1, gpu=1).excess == {("q", world.tree.columns["cpu"]): 2000.0}


def test_gang_of_a_queue_that_is_gone_is_not_taken() -> None:
    world = queues(*HALF, pending=WANTS, x=("b", 1, {"gpu": 8}))
    left = world.whole("x").gang
    gone = RunningGang(left.id, "gone", 0, left.pods, left.info)
    assert world.rights("a", gpu=1).may_ever_take(world.whole("x"))
    assert not world.rights("a", gpu=1).may_ever_take(eviction_units(gone, 0, 0.0)[-1])


def standing_to(
    state: ReclaimState, own: str, other: str, asked: Vector, expects: bool
) -> QueueStanding | None:
    """Compare two queues alone, one resource after the other."""
    tree, stated = state.tree, state.tree.structure.states_deserved
    own_path, path = tree.diverging_paths(own, other)
    if not path or other == own or not all(queue.info.reclaimable for queue in path):
        return None
    none = tree.structure.zero
    within, over = (
        {
            column
            for column in tree.columns.values()
            if all(amount(queue)[column] for queue in below)
        }
        for below, amount in (
            (
                own_path,
                lambda q: (
                    q.used + asked + state.more.get(q.info.name, none) <= q.fair_share * TOLERANCE
                ),
            ),
            (path, lambda q: state.remaining(q, expects) > q.fair_share * TOLERANCE),
        )
    )
    requested = {column for column in tree.columns.values() if asked[column] > 0}
    theirs, named = (
        {c for c in tree.columns.values() if any(stated[q.info.name][c] for q in queues)}
        for queues in (path, [*path, *own_path])
    )
    owed = requested & within & over
    if not owed:
        return None
    sets = (owed, requested - within, named, theirs - over)
    return QueueStanding(tuple(path), *map(frozenset, sets))


@pytest.mark.parametrize("seed", range(2))
def test_comparison_with_all_queues_equals_that_with_each_one_alone(seed: int) -> None:
    random = Random(seed)
    names = ["default", *(f"q{number}" for number in range(14))]
    parents = {name: random.choice(["", "", *names[1:number]]) for number, name in enumerate(names)}
    inner = set(parents.values())
    leaves = [name for name in names if name not in inner]

    def amounts() -> dict[str, float]:
        return {
            name: random.randint(0, 2) for name in ("cpu", "memory", "gpu") if random.random() < 0.7
        }

    infos = [
        QueueInfo(
            name,
            parent=parents[name],
            deserved=request(pods=0, cpu=0, gpu=random.randint(0, 2)),
            reclaimable=random.random() < 0.9,
        )
        for name in names
    ]
    gangs = {f"g{number}": (random.choice(leaves), 1, amounts()) for number in range(30)}
    world = queues(*infos, pending={leaf: amounts() for leaf in leaves}, **gangs)
    owing = 0
    for step in range(16):
        queue, asked = random.choice(leaves), world.tree.vector(dict(request(pods=0, **amounts())))  # type: ignore[arg-type]
        match step % 4:
            case 1:
                world.reclaim.add_leaving(queue, pod(f"p{step}", **amounts()))  # type: ignore[arg-type]
            case 2:
                world.reclaim.add_expected(f"d/{step % 8}", queue, request(pods=0, cpu=1, gpu=1))
            case 3:
                world.tree.add_usage(queue, asked)
        for own, expects in product(leaves, (False, True)):
            compared = world.reclaim.comparison(own, asked, expects)
            for other in world.tree.queues:
                alone = standing_to(world.reclaim, own, other, asked, expects)
                assert compared.standing(other) == alone
                owing += alone is not None
    assert owing > 5
