"""The scheduler cache: assumed pods, late events, deletions."""

from heapq import nlargest
from random import Random

from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache, UsageLedger
from gangline.scheduler.types import GroupKey, NodeName, PodKey
from unit.scheduler.builders import cluster, group, node, pod

A = NodeName("a")
P = PodKey("d/p")


def used_cpu(state: SchedulerCache, name: str = "a") -> int:
    nodes = state.nodes
    return int(nodes.used[nodes.columns["cpu"], nodes.rows[NodeName(name)]])


def test_event_older_than_the_binding_does_not_undo_it() -> None:
    state = cluster(node("a"), pod("p", cpu=2))
    state.assume(P, A)
    state.set_pod(pod("p", cpu=2, role="late"))
    assert used_cpu(state) == 2000
    assert not state.pending


def test_event_of_the_api_server_ends_the_assumption() -> None:
    state = cluster(node("a"), node("b"), pod("p", cpu=2))
    state.assume(P, A)
    state.set_pod(pod("p", cpu=2, on="b"))
    assert (used_cpu(state, "a"), used_cpu(state, "b")) == (0, 2000)
    state.forget_assumed(P, "uid-p")
    assert used_cpu(state, "b") == 2000


def test_a_failed_binding_of_a_former_pod_of_the_name_means_nothing() -> None:
    state = cluster(node("a"), pod("p", cpu=2))
    state.assume(P, A)
    state.set_pod(replace(pod("p", cpu=2), uid="another"))
    assert set(state.pending) == {P}
    state.assume(P, A)
    state.forget_assumed(P, "uid-p")
    assert not state.pending


def test_deleted_pod_releases_its_resources() -> None:
    state = cluster(node("a"), pod("p", cpu=2, on="a"))
    state.remove_pod(P)
    assert used_cpu(state) == 0
    assert not state.pods
    state.remove_pod(P)


def test_a_node_that_comes_back_still_has_its_pods() -> None:
    state = cluster(node("a"), pod("p", cpu=2, on="a"))
    state.remove_node(A)
    state.remove_node(A)
    state.set_node(node("a"))
    assert used_cpu(state) == 2000


def test_rows_of_removed_nodes_are_used_again() -> None:
    state = cluster(*(node(f"n{index}") for index in range(40)))
    size = len(state.nodes.infos)
    for index in range(40):
        state.remove_node(NodeName(f"n{index}"))
        state.set_node(node(f"m{index}", cpu=1))
    assert len(state.nodes.infos) == size
    assert len(state.nodes) == 40


def test_gang_whose_group_was_deleted_before_its_pods_leaves_nothing() -> None:
    state = cluster(node("a"), group("job", 2))
    for name in ("j0", "j1"):
        state.set_pod(pod(name, group="job", on="a"))
    ended = [state.pods[key] for key in list(state.pods)]
    state.remove_group(GroupKey("d/job"))
    for each in ended:
        state.remove_pod(each.key)
        state.record_lost_member(each, at=100.0, keep_s=60.0)
    assert (state.lost_members, state.former_members, state.members) == ({}, {}, {})
    assert (state.usage.by_group, state.pods, state.placed_members) == ({}, {}, {})


def test_largest_users_equal_a_fresh_count() -> None:
    random = Random(3)
    ledger = UsageLedger("default")
    for _ in range(2_000):
        group = GroupKey(f"d/{random.randrange(20)}")
        held = ledger.by_group.get(group, {}).get("cpu", 0)
        more = random.random() < 0.45 or not held
        ledger.charge(group, (("cpu", random.randint(1, 5) if more else held),), 1 if more else -1)
        if random.random() < 0.6:
            everybody = ((used["cpu"], name) for name, used in ledger.by_group.items())
            expected = [(name, amount) for amount, name in nlargest(4, everybody)]
            assert ledger.largest("cpu", 4) == expected


def test_charges_of_past_gangs_are_not_stored() -> None:
    ledger = UsageLedger("default")
    for result_was_read in (False, True):
        for number in range(3_000):
            group = GroupKey(f"d/{number}")
            ledger.charge(group, (("cpu", 1),))
            ledger.charge(group, (("cpu", 1),), -1)
            if result_was_read and number == 0:
                assert ledger.largest("cpu", 4) == []
        assert len(ledger._charged) <= 1_000
        assert not ledger.by_group
    ledger.charge(GroupKey("d/last"), (("cpu", 2),))
    assert ledger.largest("cpu", 4) == [("d/last", 2)]
