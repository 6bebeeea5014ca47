"""Tentative placement on rows: what fits, what is rolled back, and which row is the best."""

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.placement.gang import gang_capacity, placing_order
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.types import (
    InterPodRules,
    NodeInfo,
    PlacementConstraints,
    PodInfo,
    PodTerm,
)
from unit.scheduler.builders import (
    GPU,
    cluster,
    gang,
    group,
    node,
    on_label,
    pod,
)

NOISY = (("app", "noisy"),)
QUIET_PLACE = PlacementConstraints(
    inter_pod=InterPodRules(
        anti_affinity=(PodTerm(parse_label_selector("app=noisy"), "kubernetes.io/hostname"),)
    )
)


def host(name: str, **facts: object) -> NodeInfo:
    return node(name, labels={"kubernetes.io/hostname": name}, **facts)  # type: ignore[arg-type]


def scratch_of(*things: NodeInfo | PodInfo) -> ScratchAllocation:
    return ScratchAllocation(cluster(*things).nodes)


def pods(count: int, **facts: object) -> list[PodInfo]:
    return [pod(f"p{n}", **facts) for n in range(count)]  # type: ignore[arg-type]


def where(scratch: ScratchAllocation) -> dict[str, int]:
    """Return the number of placed pods by node."""
    found: dict[str, int] = {}
    for placement in scratch.since(0):
        name = str(scratch.nodes.name_of(placement.row))
        found[name] = found.get(name, 0) + placement.count
    return found


def row_of(scratch: ScratchAllocation, name: str) -> int:
    return next(row for each, row in scratch.nodes.rows.items() if each == name)


def only(scratch: ScratchAllocation, *names: str) -> None:
    scratch.within = scratch.free[0] < -1
    for name in names:
        scratch.within[row_of(scratch, name)] = True


def test_a_used_node_is_filled_before_the_next_one() -> None:
    used = pod("used", cpu=1, on="n1")
    scratch = scratch_of(host("n0", cpu=4), host("n1", cpu=4), used)
    wanted = pods(9)
    left = scratch.place(wanted[0].shape, wanted)
    assert where(scratch) == {"n1": 3, "n0": 4}
    assert [each.key for each in left] == ["d/p7", "d/p8"]
    assert (scratch.free >= 0).all()


def test_only_rows_within_are_used() -> None:
    scratch = scratch_of(host("n0", cpu=4), host("n1", cpu=4), host("n2", cpu=4))
    only(scratch, "n1")
    wanted = pods(5)
    assert len(scratch.place(wanted[0].shape, wanted)) == 1
    assert where(scratch) == {"n1": 4}
    scratch.within = None
    assert scratch.place(wanted[0].shape, wanted[4:]) == []
    assert where(scratch) in ({"n1": 4, "n0": 1}, {"n1": 4, "n2": 1})


def test_single_pods_one_after_the_other_fill_the_same_row() -> None:
    scratch = scratch_of(host("n0", cpu=2), host("n1", cpu=2))
    places = []
    for each in pods(5):
        left = scratch.place(each.shape, [each])
        places.append(len(left) or scratch.since(0)[-1].row)
    first = places[0]
    assert places[:2] == [first, first]
    assert places[2] == places[3] != first
    assert places[4] == 1
    assert sum(placement.count for placement in scratch.since(0)) == 4


def test_a_changed_row_is_scored_again() -> None:
    """The row of the last pod is left for one that became better meanwhile."""
    scratch = scratch_of(host("n0", cpu=8, gpu=8), host("n1", cpu=8, gpu=8))
    first, second, third = pods(3, gpu=1)
    scratch.place(first.shape, [first])
    before = scratch.since(0)[-1].row
    other = 1 - before
    assert scratch.place_on_row(replace(second, shape=pod("x", cpu=1, gpu=5).shape), other)
    scratch.place(third.shape, [third])
    assert scratch.since(0)[-1].row == other


def test_rollback_restores_the_free_amounts() -> None:
    scratch = scratch_of(host("n0", cpu=4))
    kept, undone = pods(2)
    scratch.place(kept.shape, [kept])
    free, mark = scratch.free.copy(), scratch.mark()
    scratch.place(undone.shape, [undone])
    assert (scratch.free != free).any()
    scratch.rollback(mark)
    assert (scratch.free == free).all()
    assert [each.key for placement in scratch.since(0) for each in placement.pods] == ["d/p0"]
    assert scratch.since(mark) == []


@pytest.mark.parametrize(
    ("facts", "within", "fits"),
    [
        pytest.param({"cpu": 4}, "n0", True, id="it fits exactly"),
        pytest.param({"cpu": 5}, "n0", False, id="too large"),
        pytest.param({"cpu": 1}, "n1", False, id="another row only"),
        pytest.param(
            {"cpu": 1, "constraints": on_label(is_="x")}, "n0", False, id="not accepted there"
        ),
        pytest.param({"cpu": 1, "constraints": QUIET_PLACE}, "n0", False, id="beside a noisy pod"),
    ],
)
def test_pod_is_placed_on_a_row_that_accepts_it(
    facts: dict[str, object], within: str, fits: bool
) -> None:
    noisy = pod("noisy", cpu=4, on="n0", labels=NOISY)
    scratch = scratch_of(host("n0", cpu=8), host("n1", cpu=8), noisy)
    only(scratch, within)
    wanted = pod("p", **facts)  # type: ignore[arg-type]
    assert scratch.place_on_row(wanted, row_of(scratch, "n0")) == fits
    assert where(scratch) == ({"n0": 1} if fits else {})


def test_rows_for_a_pod_are_those_where_it_fits_the_best_first() -> None:
    scratch = scratch_of(
        host("n0", cpu=8),
        host("n1", cpu=8),
        host("n2", cpu=8),
        host("n3", cpu=8, unschedulable=True),
        pod("half", cpu=4, on="n1"),
        pod("full", cpu=8, on="n2"),
    )
    shape = pod("p").shape
    assert scratch.rows_for(shape) == [row_of(scratch, "n1"), row_of(scratch, "n0")]
    only(scratch, "n0", "n2")
    assert scratch.rows_for(shape) == [row_of(scratch, "n0")]


def test_pods_are_placed_together_on_the_best_row_that_holds_all() -> None:
    scratch = scratch_of(
        host("n0", cpu=4), host("n1", cpu=8), host("n2", cpu=6), pod("used", cpu=1, on="n2")
    )
    together = [pod("a", cpu=3), pod("b", cpu=2)]
    assert scratch.place_together(together, set()) == row_of(scratch, "n2")
    assert where(scratch) == {"n2": 2}
    scratch.rollback(0)
    assert scratch.place_together(together, {row_of(scratch, "n2")}) == row_of(scratch, "n1")
    scratch.rollback(0)
    only(scratch, "n0")
    assert scratch.place_together(together, set()) is None
    assert where(scratch) == {}


def test_pods_together_need_a_row_that_accepts_each_of_them() -> None:
    scratch = scratch_of(
        node("n0", cpu=8, labels={"zone": "a"}), node("n1", cpu=8, labels={"zone": "b"})
    )
    either = [pod("a"), pod("b", constraints=on_label(zone="b"))]
    assert scratch.place_together(either, set()) == row_of(scratch, "n1")
    both = [pod("a", constraints=on_label(zone="a")), pod("b", constraints=on_label(zone="b"))]
    assert scratch.place_together(both, set()) is None


def test_pods_with_rules_about_others_are_not_placed_together() -> None:
    scratch = scratch_of(host("n0", cpu=8))
    assert scratch.place_together([pod("a"), pod("b", constraints=QUIET_PLACE)], set()) is None


def test_pod_with_rules_avoids_pods_that_were_placed_in_the_same_cycle() -> None:
    scratch = scratch_of(host("n0", cpu=8), host("n1", cpu=8))
    noisy, quiet, second = (
        pod("noisy", labels=NOISY),
        pod("quiet", constraints=QUIET_PLACE),
        pod("quiet2", constraints=QUIET_PLACE),
    )
    assert scratch.place_on_row(noisy, 0)
    assert scratch.has_inter_pod_rules(quiet.shape)
    assert not scratch.has_inter_pod_rules(noisy.shape)
    assert scratch.place(quiet.shape, [quiet, second]) == []
    assert [placement.row for placement in scratch.since(1)] == [1, 1]
    # Now a noisy pod is kept off by those that were placed.
    assert scratch.has_inter_pod_rules(noisy.shape)
    assert not scratch.place_on_row(replace(noisy, key=pod("n2").key), 1)
    scratch.within = scratch.free[0] < -1
    assert scratch.place(quiet.shape, [pod("quiet3", constraints=QUIET_PLACE)]) != []


def test_shortages_count_the_eligible_nodes_with_too_little() -> None:
    scratch = scratch_of(
        node("n0", cpu=2, gpu=1, labels={"zone": "a"}),
        node("n1", cpu=4, gpu=0, labels={"zone": "a"}),
        node("n2", cpu=1, gpu=0, labels={"zone": "b"}),
    )
    shape = pod("p", cpu=3, gpu=1, constraints=on_label(zone="a")).shape
    assert scratch.shortages(shape) == {"cpu": 1, GPU: 1}
    assert scratch.lacking_resources(shape, row_of(scratch, "n0")) == ["cpu"]
    assert scratch.lacking_resources(shape, row_of(scratch, "n1")) == [GPU]
    assert scratch.lacking_resources(shape, row_of(scratch, "n2")) == ["cpu", GPU]
    exact = pod("p", cpu=2, gpu=1).shape
    assert scratch.lacking_resources(exact, row_of(scratch, "n0")) == []


def test_reserved_amounts_may_exceed_what_is_free_until_they_are_released() -> None:
    scratch = scratch_of(host("n0", cpu=4))
    assert scratch.place_on_row(pod("placed", cpu=0.5), 0)
    wanted = pods(1, cpu=3)[0]
    demand = scratch.nodes.demand(wanted.shape.request)
    plan = [Placement((wanted,), 0, demand, unseen_pods=1)]
    free = scratch.free.copy()
    assert scratch.has_capacity(Placement((wanted,), 0, demand))
    assert not scratch.has_capacity(plan[0])
    scratch.reserve(plan)
    assert scratch.free.min() < 0
    assert (scratch.without_reservations().free == free).all()
    assert scratch.place(wanted.shape, [wanted]) == [wanted]
    scratch.release(plan)
    assert (scratch.free == free).all()
    assert (scratch.without_reservations().free == free).all()
    scratch.charge_pod(wanted, 0)
    assert not scratch.has_capacity(Placement((wanted,), 0, demand))
    assert len(scratch.since(0)) == 1


def test_fork_has_the_placements_and_changes_nothing_of_the_original() -> None:
    noisy = pod("noisy", cpu=1, labels=NOISY)
    quiet = pod("quiet", cpu=1, constraints=QUIET_PLACE)
    scratch = scratch_of(host("n0", cpu=4), host("n1", cpu=4))
    assert scratch.place_on_row(noisy, 0)
    only(scratch, "n0")
    fork = scratch.fork(scratch.free.copy())
    assert fork.place(quiet.shape, [quiet]) == [quiet], "n0 has the noisy pod"
    fork.within = None
    assert fork.place(quiet.shape, [quiet]) == []
    assert where(scratch) == {"n0": 1}
    assert len(fork.since(0)) == 2


def test_ended_pods_keep_no_other_off() -> None:
    noisy = pod("noisy", cpu=3, on="n0", labels=NOISY)
    first = pod("first", cpu=0, on="n0", labels=NOISY)
    scratch = scratch_of(host("n0", cpu=4), noisy, first)
    quiet = pod("quiet", cpu=2, constraints=QUIET_PLACE)
    assert scratch.place(quiet.shape, [quiet]) == [quiet]
    terms = scratch.nodes.demand(noisy.shape.request).terms
    scratch.end_pods([(first, 0)], [])
    scratch.end_pods([(noisy, 0)], [(column, 0, amount) for column, amount, _ in terms])
    assert scratch.place(quiet.shape, [quiet]) == []


def pending(*things: object) -> tuple[ScratchAllocation, PendingGang]:
    state = cluster(*things)  # type: ignore[arg-type]
    (found,), _ = pending_gangs(state, 0.0)
    return ScratchAllocation(state.nodes), found


def test_capacity_is_that_of_the_nodes_that_accept_some_pod_of_the_gang() -> None:
    scratch, wants = pending(
        node("n0", cpu=4, labels={"zone": "a"}),
        node("n1", cpu=8, labels={"zone": "a"}),
        node("n2", cpu=32, labels={"zone": "b"}),
        pod("used", cpu=3, on="n1"),
        *gang("g", 3, cpu=6, constraints=on_label(zone="a")),
    )
    found = gang_capacity(scratch, wants)
    assert found.requested == {"cpu": 18_000}
    assert (found.free, found.max_node_free) == ({"cpu": 9_000}, {"cpu": 5_000})
    assert (found.total, found.eligible_nodes) == ({"cpu": 12_000}, 2)


def test_full_nodes_have_nothing_free() -> None:
    scratch, wants = pending(node("n0", cpu=4), pod("used", cpu=4, on="n0"), *gang("g", 1))
    found = gang_capacity(scratch, wants)
    assert (found.free, found.max_node_free) == ({"cpu": 0}, {"cpu": 0})
    assert gang_capacity(*pending(*gang("g", 1, cpu=0))).max_node_free == {}


def test_pods_with_few_nodes_come_first_then_large_ones_and_extra_pods_last() -> None:
    nodes = [
        node("n0", cpu=8, memory=64, labels={"zone": "a"}),
        node("n1", cpu=8, memory=64, labels={"zone": "b"}),
    ]
    members = {
        "small": pod("g-0", cpu=1, group="g"),
        "large": pod("g-1", cpu=4, group="g"),
        "memory": pod("g-2", cpu=1, memory=8, group="g"),
        "bound": pod("g-3", cpu=1, group="g", constraints=on_label(zone="a")),
        "extra": pod("g-4", cpu=8, group="g"),
    }
    scratch, wants = pending(*nodes, group("g", 4), *members.values())
    order = [
        name
        for shape, _ in placing_order(scratch.nodes, wants, wants.pending)
        for name, each in members.items()
        if each.shape is shape
    ]
    assert order == ["bound", "large", "memory", "small", "extra"]
