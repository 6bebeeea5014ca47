"""Subgroups: complete or not placed, enough of them or none, each within its domain."""

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.queueing.subgroups import order_by_subgroup, split_into_subgroups
from gangline.scheduler.types.types import (
    CycleResult,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeName,
    PodInfo,
    SubgroupRule,
)
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, pod

SLICES = SubgroupRule("slices", Selector(), size=2, min_subgroups=2, keys=("slice",))
NEAR = SubgroupRule(
    "slices", Selector(), size=2, keys=("slice",), network=NetworkTopologyRule(tier=1)
)


def members(*slices: str, each: int = 2, **facts: object) -> list[PodInfo]:
    return [
        pod(f"job-{name}-{index}", group="job", labels=(("slice", name),), **facts)  # type: ignore[arg-type]
        for name in slices
        for index in range(each)
    ]


def where(decision: CycleResult) -> dict[str, NodeName]:
    return {binding.pod.removeprefix("d/job-"): binding.node for binding in decision.bindings}


def rack(name: str, *nodes: str) -> HyperNodeInfo:
    return HyperNodeInfo(name, 1, members=tuple(HyperNodeMemberInfo(False, exact=n) for n in nodes))


def test_minimal_number_of_subgroups_is_placed_completely() -> None:
    rules = group("job", 0, subgroups=(SLICES,))
    small = cluster(node("n1", cpu=3), rules, *members("a", "b", "c"))
    decision = decide(small)
    assert not decision.bindings
    assert "4 must start together" in decision.pending_reasons[0].message
    enough = cluster(node("n1", cpu=5), rules, *members("a", "b", "c"))
    assert set(where(decide(enough))) == {"a-0", "a-1", "b-0", "b-1"}


def test_extra_subgroup_is_placed_completely_or_not_at_all() -> None:
    rules = group("job", 0, subgroups=(SLICES,))
    there = members("a", "b", on="n1")
    state = cluster(node("n1", cpu=5), rules, *there, *members("c"))
    decision = decide(state)
    assert not decision.bindings
    (pending,) = decision.pending_reasons
    assert pending.group is None
    assert [pod for pod, _ in pending.pods] == ["d/job-c-0", "d/job-c-1"]
    state.set_node(node("n1", cpu=6))
    assert set(where(decide(state))) == {"c-0", "c-1"}


def test_a_minimum_of_pods_counts_beside_that_of_small_gangs() -> None:
    rules = group("job", 6, subgroups=(SLICES,))
    assert not decide(cluster(node("n1", cpu=5), rules, *members("a", "b", "c"))).bindings
    assert len(where(decide(cluster(node("n1", cpu=6), rules, *members("a", "b", "c"))))) == 6


def test_gang_without_enough_pods_for_its_subgroups_has_a_reason() -> None:
    rules = group("job", 0, subgroups=(SLICES,))
    state = cluster(
        node("n1"), rules, *members("a"), pod("job-b-0", group="job", labels=(("slice", "b"),))
    )
    verdict = decide(state).pending_reasons[0]
    assert verdict.reason == "NotEnoughTasks"
    assert "1 of the 2 subgroups 'slices'" in verdict.message


def test_each_small_gang_is_within_one_network_domain_of_its_own() -> None:
    rules = group("job", 4, subgroups=(NEAR,))
    nodes = [node(f"n{i}", cpu=1) for i in range(6)]
    state = cluster(*nodes, rules, *members("a", "b"))
    for domain in (rack("r1", "n0", "n3"), rack("r2", "n1", "n4"), rack("r3", "n2", "n5")):
        state.nodes.set_hypernode(domain)
    placed = where(decide(state))
    racks = {"n0": 1, "n3": 1, "n1": 2, "n4": 2, "n2": 3, "n5": 3}
    assert racks[placed["a-0"]] == racks[placed["a-1"]]
    assert racks[placed["b-0"]] == racks[placed["b-1"]]


def test_a_lost_pod_of_a_small_gang_comes_back_near_the_rest_of_it() -> None:
    rules = group("job", 2, subgroups=(NEAR,))
    nodes = [node(f"n{i}", cpu=2) for i in range(3)]
    lost, kept = members("a")
    running = pod("job-a-1", group="job", labels=kept.labels, on="n2")
    state = cluster(*nodes, rules, running, lost)
    state.nodes.set_hypernode(rack("r1", "n0", "n1"))
    state.nodes.set_hypernode(rack("r2", "n2"))
    assert where(decide(state)) == {"a-0": "n2"}


def test_pods_that_no_rule_means_are_placed_by_themselves() -> None:
    only = SubgroupRule(
        "some", Selector((Requirement("slice", "exists"),)), size=2, keys=("slice",)
    )
    rules = group("job", 1, subgroups=(only,))
    state = cluster(node("n1", cpu=2), rules, *members("a"), pod("job-master", group="job"))
    assert len(where(decide(state))) == 2


def test_rules_are_read_from_the_group() -> None:
    written = {
        "apiVersion": POD_GROUPS.api_version,
        "metadata": {"name": "job", "namespace": "d"},
        "spec": {
            "subGroupPolicy": [
                {
                    "name": "slices",
                    "subGroupSize": 4,
                    "minSubGroups": 2,
                    "labelSelector": {"matchLabels": {"role": "worker"}},
                    "matchLabelKeys": ["slice"],
                    "networkTopology": {"mode": "soft", "highestTierAllowed": 1},
                }
            ]
        },
    }
    (rule,) = group_info(msgspec.convert(written, PodGroup), {}).subgroups
    selector = Selector((Requirement("role", "=", ("worker",)),))
    assert rule == SubgroupRule("slices", selector, 4, 2, ("slice",), NetworkTopologyRule(False, 1))


@settings(deadline=None, max_examples=60)
@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    slices=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    size=st.integers(1, 3),
    minimum=st.integers(0, 3),
    together=st.integers(0, 6),
    running=st.integers(0, 3),
)
def test_no_small_gang_is_ever_left_with_too_few(
    free: list[int], slices: list[int], size: int, minimum: int, together: int, running: int
) -> None:
    rule = SubgroupRule("slices", Selector(), size=size, min_subgroups=minimum, keys=("slice",))
    state = cluster(*(node(f"n{i}", cpu=cpu) for i, cpu in enumerate(free)))
    state.set_node(node("full", cpu=running))
    state.set_group(group("job", together, subgroups=(rule,)))
    there = Counter[str]()
    for name, count in zip("abcd", slices, strict=False):
        for member in members(name, each=count):
            on = NodeName("full") if there.total() < running else None
            there[name] += on is not None
            state.set_pod(replace(member, node=on, phase="Running" if on else "Pending"))
    placed = Counter(binding.pod.split("-")[1] for binding in decide(state).bindings)
    if placed:
        after = placed + there
        assert all(after[name] >= size for name in placed)
        assert sum(count >= size for count in after.values()) >= minimum
        assert after.total() >= together


def test_pods_are_ordered_by_subgroup_and_incomplete_subgroups_come_last() -> None:
    rule = SubgroupRule("slices", Selector(), size=2, keys=("slice",))
    waiting = [*members("a", each=1), *members("b"), *members("c", each=1), *members("d")]
    running = [pod("job-c-9", group="job", labels=(("slice", "c"),), on="n")]
    parts = split_into_subgroups([rule], running, waiting)
    assert [part.key[1] for part in parts] == [("c",), ("a",), ("b",), ("d",)]
    ordered = [each.key for each in order_by_subgroup(parts, waiting)]
    assert ordered == [
        *("d/job-c-0", "d/job-b-0", "d/job-b-1", "d/job-d-0", "d/job-d-1"),
        "d/job-a-0",
    ]


def test_ended_members_of_a_subgroup_count_but_do_not_run() -> None:
    rule = SubgroupRule("slices", Selector(), size=2, keys=("slice",))
    labels = (("slice", "a"),)
    ended = pod("job-a-8", group="job", labels=labels, on="n", phase="Succeeded")
    runs = pod("job-a-9", group="job", labels=labels, on="n")
    (part,) = split_into_subgroups([rule], [ended, runs], [])
    assert (part.settled, [each.key for each in part.running]) == (2, ["d/job-a-9"])


def test_member_that_succeeded_counts_and_holds_nothing() -> None:
    done, runs = members("a", on="n1")
    (part,) = split_into_subgroups((SLICES,), [replace(done, phase="Succeeded"), runs], ())
    assert (part.settled, part.running, part.missing) == (2, (runs,), 0)
