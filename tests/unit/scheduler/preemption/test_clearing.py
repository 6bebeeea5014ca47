"""Free amounts after evictions: requests, attachments of volumes, and pods that are ending."""

import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption.victims import (
    Clearing,
    EndingPods,
    EvictionUnit,
    PlacedPod,
    RunningGang,
    ending_pods,
    eviction_units,
    placed_on_rows,
)
from gangline.scheduler.types import (
    GroupKey,
    InterPodRules,
    NodeName,
    PlacementConstraints,
    PodInfo,
    PodKey,
    PodTerm,
)
from unit.scheduler.builders import (
    DRIVER,
    checked_cycle,
    cluster,
    give_volumes,
    group,
    node,
    pod,
    using,
)


def unit(name: str, *pods: PodInfo) -> EvictionUnit:
    gang = RunningGang(f"d/{name}", "default", 0, pods, group(name, len(pods)))
    return eviction_units(gang, 0, 0.0)[-1]


def clearing(state: SchedulerCache, *ending: PodInfo) -> Clearing:
    return Clearing(state, ScratchAllocation(state.nodes), EndingPods(state, ending))


def free(state: SchedulerCache, scratch: ScratchAllocation) -> dict[str, int]:
    column = state.nodes.columns["cpu"]
    return {str(name): int(scratch.free[column, row]) for name, row in state.nodes.rows.items()}


def test_evicted_and_ending_pods_free_their_requests_on_their_nodes() -> None:
    a = [pod("a-0", cpu=1, group="a", on="n0"), pod("a-1", cpu=1, group="a", on="n1")]
    twice = [pod(f"b-{n}", cpu=1, group="b", on="n0") for n in range(2)]
    ends = pod("ends", cpu=2, on="n1", is_terminating=True)
    state = cluster(node("n0", cpu=4), node("n1", cpu=4), *a, *twice, ends)
    found = clearing(state, ends)
    assert free(state, found.base) == {"n0": 1000, "n1": 3000}
    both = [unit("a", *a), unit("b", *twice)]
    assert free(state, found.after(both)) == {"n0": 4000, "n1": 4000}
    assert free(state, found.after(both[1:])) == {"n0": 3000, "n1": 3000}
    assert free(state, found.base) == {"n0": 1000, "n1": 3000}
    cpu, row = state.nodes.columns["cpu"], state.nodes.rows[NodeName("n0")]
    assert found.freed_by(both[0], row)[cpu] == 1000
    assert found.freed_by(both[1], row)[cpu] == 2000
    assert found.freed_by(both[1], state.nodes.rows[NodeName("n1")]) == {}
    assert set(found.pods_by_row(both[1])) == {row}


def test_pods_on_nodes_that_are_gone_free_nothing() -> None:
    state = cluster(node("n0", cpu=4))
    lost: list[PlacedPod] = placed_on_rows(state, [pod("x", on="gone"), pod("y")])
    assert lost == []


def test_evicted_pods_keep_no_other_off() -> None:
    rules = PlacementConstraints(
        inter_pod=InterPodRules(anti_affinity=(PodTerm(parse_label_selector("app=web"), "name"),))
    )
    web = pod("web", group="web", on="n0", labels=(("app", "web"),))
    state = cluster(node("n0", cpu=4, labels={"name": "n0"}), web)
    wants = pod("wants", constraints=rules)
    found = clearing(state)
    assert list(found.after(()).place(wants.shape, [wants])) == [wants]
    assert list(found.after([unit("web", web)]).place(wants.shape, [wants])) == []


@pytest.mark.parametrize(
    ("gone", "attached"),
    [
        pytest.param((), 0, id="none is free"),
        pytest.param(("own",), 1, id="of a claim of its own"),
        pytest.param(("one",), 0, id="another pod on the node uses the claim"),
        pytest.param(("one", "two"), 1, id="all users of the claim"),
        pytest.param(("own", "one", "two"), 2, id="all of them"),
        pytest.param(("plain",), 0, id="a pod without claims"),
    ],
)
@pytest.mark.parametrize("ending", [False, True], ids=["evicted", "ending"])
def test_attachments_are_free_once_their_last_user_has_ended(
    gone: tuple[str, ...], attached: int, ending: bool
) -> None:
    pods = {
        "own": using("own", "c0", group="own", on="n0"),
        "one": using("one", "shared", group="one", on="n0"),
        "two": using("two", "shared", group="two", on="n0"),
        "plain": using("plain", group="plain", on="n0"),
    }
    waiting = [using(f"new{n}", f"new{n}") for n in range(2)]
    state = give_volumes(cluster(node("n0", cpu=16), *pods.values(), *waiting), n0=2)
    checked_cycle(state)  # It counts the attachments that the pending pods ask for.
    if ending:
        scratch = clearing(state, *(pods[name] for name in gone)).base
    else:
        scratch = clearing(state).after([unit(name, pods[name]) for name in gone])
    column = next(c for name, c in state.nodes.columns.items() if name.endswith(f"{DRIVER}"))
    assert scratch.free[column, 0] == attached


def test_one_eviction_after_the_other_frees_a_shared_attachment_once() -> None:
    """The first victim's claim is used by an ending pod too: both together free it."""
    ends = using("ends", "shared", on="n0", is_terminating=True)
    victim = using("victim", "shared", group="victim", on="n0")
    state = give_volumes(cluster(node("n0", cpu=16), ends, victim, using("new", "new")), n0=1)
    checked_cycle(state)
    column = next(c for name, c in state.nodes.columns.items() if name.endswith(DRIVER))
    found = clearing(state, ends)
    assert found.base.free[column, 0] == 0
    assert found.after([unit("victim", victim)]).free[column, 0] == 1


@pytest.mark.parametrize(
    ("facts", "minimum", "ends"),
    [
        pytest.param((True, True), 2, {"g-0", "g-1"}, id="all of a gang"),
        pytest.param((True, False), 1, {"g-0"}, id="a member that the gang can do without"),
        pytest.param((True, False), 2, set(), id="a member that is recreated on its node"),
        pytest.param((False, False), 2, set(), id="none"),
    ],
)
def test_room_of_ending_pods_is_anybodys_unless_their_gang_needs_it(
    facts: tuple[bool, bool], minimum: int, ends: set[str]
) -> None:
    members = [
        pod(f"g-{n}", group="g", on="n0", is_terminating=each) for n, each in enumerate(facts)
    ]
    state = cluster(node("n0", cpu=8), group("g", minimum), *members)
    assert {each.key.removeprefix("d/") for each in ending_pods(state)} == ends


def test_room_of_single_pods_and_of_deleted_groups_is_anybodys() -> None:
    alone = pod("alone", on="n0", is_terminating=True)
    orphan = pod("orphan", group="gone", on="n0", is_terminating=True)
    state = cluster(node("n0", cpu=8), orphan, alone)
    assert [each.key for each in ending_pods(state)] == ["d/alone", "d/orphan"]


def test_room_of_a_gang_that_restarts_is_its_own() -> None:
    member = pod("g-0", group="g", on="n0", is_terminating=True)
    state = cluster(node("n0", cpu=8), group("g", 1), member)
    assert [each.key for each in ending_pods(state)] == [PodKey("d/g-0")]
    state.restarting_groups.add(GroupKey("d/g"))
    assert ending_pods(state) == []


def test_attachment_is_freed_for_a_claim_that_several_pods_share() -> None:
    victim = using("victim", "c0", group="victim", on="n0")
    sharing = [using(f"wants-{n}", "shared", group="wants") for n in range(2)]
    state = give_volumes(
        cluster(
            node("n0", cpu=16),
            group("victim", 1),
            victim,
            group("wants", 2, priority=9),
            *sharing,
        ),
        n0=1,
    )
    assert [each.pod for each in checked_cycle(state).evictions] == ["d/victim"]


def test_attachments_that_a_unit_frees_are_counted_on_its_node_alone() -> None:
    pods = [using(f"g-{n}", f"c{n}", group="g", on=f"n{n}") for n in range(2)]
    waiting = using("new", "new")
    state = give_volumes(cluster(node("n0", cpu=4), node("n1", cpu=4), *pods, waiting), n0=1)
    checked_cycle(state)
    column = next(c for name, c in state.nodes.columns.items() if name.endswith(DRIVER))
    found, both = clearing(state), unit("g", *pods)
    rows = {name: state.nodes.rows[NodeName(name)] for name in ("n0", "n1")}
    assert found.detached_by(both, rows["n0"])[column] == 1
    assert found.freed_by(both, rows["n0"])[column] == 1
    alone = unit("alone", pods[0])
    assert found.detached_by(alone, rows["n1"]) == {}
