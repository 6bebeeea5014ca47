"""Pending gangs: what they need, request and know about their run time, and who is equivalent."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.queueing.admission import held_by_gates
from gangline.scheduler.queueing.gangs import (
    MAX_RESTART_RESERVATION_S,
    PendingGang,
    active_previous_nodes,
    missing_roles,
    order_by_subgroup,
    pending_gangs,
    split_into_subgroups,
)
from gangline.scheduler.types import (
    CycleResult,
    NetworkTopologyRule,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PreviousNodes,
    RefusedBinding,
    SubgroupRule,
)
from unit.scheduler.builders import ANYWHERE, cluster, gang, group, node, pod, request
from unit.scheduler.builders import checked_cycle as decide

NOW = 1000.0


def pending(*things: PodGroupInfo | PodInfo) -> dict[str, PendingGang]:
    found, _ = pending_gangs(cluster(node("n", cpu=64), *things), NOW)
    return {each.name.removeprefix("d/"): each for each in found}


def test_a_gang_whose_pods_are_held_by_gates_says_so() -> None:
    gated = [pod(f"g-{n}", group="g", is_gated=True) for n in range(2)]
    info = group("g", 3)
    state = cluster(node("n"), info, pod("g-2", group="g"), *gated)
    gangs, [reason] = pending_gangs(state, NOW)
    assert not gangs
    assert (reason.reason, reason.pods[0][0]) == ("SchedulingGated", "d/g-2")
    assert "hold 2 of its 3 pods" in reason.message
    only_gated = held_by_gates(info, gated)
    assert not only_gated.pods
    assert held_by_gates(group("g", 1), [pod("g-2", group="g"), *gated]) is None


def test_a_gang_is_tried_again_when_the_pause_after_a_refused_binding_has_ended() -> None:
    state = cluster(node("n"), *gang("g", 2), pod("alone"))
    for name in ("g-worker-0", "alone"):
        key = PodKey(f"d/{name}")
        refused = RefusedBinding(f"uid-{name}", 1, NOW + 1, "denied")
        state.refused_bindings[key] = refused
    gangs, reasons = pending_gangs(state, NOW)
    assert not gangs
    assert {(reason.reason, reason.group, len(reason.pods)) for reason in reasons} == {
        ("BindingRefused", None, 1),
        ("BindingRefused", "d/g", 2),
    }
    assert len(pending_gangs(state, NOW + 1)[0]) == 2


def test_gang_requests_what_it_cannot_start_without() -> None:
    members = [pod(f"g-{n}", cpu=n + 1, memory=n, group="g", age=9 - n) for n in range(3)]
    found = pending(group("g", 2, age=3), *members)["g"]
    assert (found.needed, found.missing_members) == (2, 2)
    assert found.requested == request(cpu=3, memory=1, pods=2)
    assert (found.created.timestamp(), found.pending_since.timestamp()) == (3, 7)
    running = pod("g-0", group="g", on="n")
    found = pending(group("g", 2), running, *members[1:])["g"]
    assert (found.needed, found.requested) == (1, request(cpu=2, memory=1, pods=1))
    assert [each.key for each in found.running] == ["d/g-0"]
    assert found.is_urgent


@pytest.mark.parametrize(
    ("running", "needed", "urgent"),
    [
        pytest.param({"on": "n"}, 1, True, id="it runs without a member"),
        pytest.param({"on": "n", "is_terminating": True}, 2, False, id="the other one is ending"),
        pytest.param({"on": "n", "phase": "Succeeded"}, 1, False, id="the other one is done"),
        pytest.param({"on": "n", "phase": "Failed"}, 2, False, id="the other one has failed"),
    ],
)
def test_members_that_run_or_are_done_count(
    running: dict[str, object], needed: int, urgent: bool
) -> None:
    members = [pod("g-1", group="g"), pod("g-2", group="g")]
    found = pending(group("g", 2), pod("g-0", group="g", **running), *members)["g"]  # type: ignore[arg-type]
    assert (found.needed, found.is_urgent) == (needed, urgent)


@pytest.mark.parametrize(
    ("of_pods", "of_group", "known"),
    [
        pytest.param((60.0, 90.0), 0.0, 90.0, id="the longest of its pods"),
        pytest.param((60.0, 0.0), 0.0, 0.0, id="one pod has no limit"),
        pytest.param((60.0, 0.0), 80.0, 80.0, id="the group has one"),
        pytest.param((60.0, 90.0), 80.0, 80.0, id="the shorter of both"),
        pytest.param((60.0, 70.0), 80.0, 70.0, id="the shorter of both, the other way round"),
        pytest.param((0.0, 0.0), 0.0, 0.0, id="nothing is known"),
    ],
)
def test_run_time_is_bounded_by_pods_and_group(
    of_pods: tuple[float, float], of_group: float, known: float
) -> None:
    members = [pod(f"g-{n}", group="g", max_run_time_s=each) for n, each in enumerate(of_pods)]
    assert pending(group("g", 2, max_run_time_s=of_group), *members)["g"].max_run_time_s == known


def test_pods_are_placed_by_priority_then_by_their_number() -> None:
    names = ["g-10", "g-9", "g-1", "x-2", "g"]
    members = [pod(name, group="g") for name in names]
    first = pod("z-7", group="g", priority=3)
    found = pending(group("g", 1), *members, first)["g"]
    order = [each.key.removeprefix("d/") for each in found.pending]
    assert order == ["z-7", "g", "g-1", "g-9", "g-10", "x-2"]


def test_equal_gangs_fit_equally_and_others_do_not() -> None:
    found = pending(
        *gang("a", 2, cpu=1),
        *gang("b", 2, cpu=1),
        *gang("larger", 3, cpu=1),
        *gang("richer", 2, cpu=2),
        group("part", 1),
        *(pod(f"part-{n}", group="part") for n in range(2)),
        pod("alone"),
        pod("alone2"),
    )
    keys = {name: each.equivalence_key for name, each in found.items()}
    assert keys["a"] is keys["b"]
    assert keys["alone"] is keys["alone2"]
    assert len(set(map(id, keys.values()))) == len(keys) - 2


@pytest.mark.parametrize(
    ("expires_at", "active"),
    [
        pytest.param(NOW, False, id="expired"),
        pytest.param(NOW + 1, True, id="about to expire"),
        pytest.param(NOW + MAX_RESTART_RESERVATION_S, True, id="the longest"),
        pytest.param(NOW + MAX_RESTART_RESERVATION_S + 1, False, id="longer than is allowed"),
    ],
)
def test_previous_nodes_hold_until_they_expire(expires_at: float, active: bool) -> None:
    nodes = ((PodKey("d/g-0"), NodeName("n")),)
    known = group("g", 1, previous_nodes=PreviousNodes(expires_at, nodes))
    assert active_previous_nodes(known, NOW) == (nodes if active else ())
    found = pending(known, pod("g-0", group="g", constraints=ANYWHERE))["g"]
    assert found.is_urgent == active


def test_roles_with_enough_members_lack_nothing() -> None:
    info = group("g", 4, min_task_member=(("ps", 1), ("worker", 2)))
    settled = [pod(f"g-{n}", group="g", on="n", role=role) for n, role in enumerate(("ps", "ps"))]
    assert missing_roles(info, settled) == (("worker", 2),)


def only(minimum: int, roles: tuple[tuple[str, int], ...], *pods: tuple[str, str]) -> PendingGang:
    """Return a pending gang of pods with these names and roles."""
    state = cluster(
        node("n"),
        group("g", minimum, min_task_member=roles),
        *(pod(name, group="g", role=role) for name, role in pods),
    )
    (found,), _ = pending_gangs(state, 0.0)
    return found


def names(found: PendingGang) -> list[str]:
    return [each.key.removeprefix("d/") for each in found.pending]


WORKERS = (("a-0", "worker"), ("a-1", "worker"), ("a-2", "worker"), ("b-0", "ps"), ("b-1", "ps"))


@pytest.mark.parametrize(
    ("minimum", "roles", "order", "needed"),
    [
        pytest.param(2, (), ["a-0", "a-1", "a-2", "b-0", "b-1"], 2, id="no roles"),
        pytest.param(
            2, (("ps", 1), ("worker", 1)), ["a-0", "b-0", "a-1", "a-2", "b-1"], 2, id="one of each"
        ),
        pytest.param(
            3, (("ps", 2),), ["b-0", "b-1", "a-0", "a-1", "a-2"], 3, id="roles, then the gang"
        ),
        pytest.param(
            1, (("ps", 2),), ["b-0", "b-1", "a-0", "a-1", "a-2"], 2, id="roles beyond the minimum"
        ),
    ],
)
def test_pods_of_roles_below_their_minimum_come_first(
    minimum: int, roles: tuple[tuple[str, int], ...], order: list[str], needed: int
) -> None:
    found = only(minimum, roles, *WORKERS)
    assert names(found) == order
    assert found.needed == needed


def test_members_that_run_count_for_their_role() -> None:
    state = cluster(
        node("n"),
        group("g", 3, min_task_member=(("ps", 1), ("worker", 2))),
        pod("a-0", group="g", role="worker", on="n"),
        *(pod(name, group="g", role=role) for name, role in WORKERS[1:]),
    )
    (found,), _ = pending_gangs(state, 0.0)
    assert names(found)[:2] == ["a-1", "b-0"]
    assert found.needed == 2


@pytest.mark.parametrize("network", [None, NetworkTopologyRule(tier=1)])
def test_equal_gangs_are_recognised_wherever_their_members_run(
    network: NetworkTopologyRule | None,
) -> None:
    """Only a required or preferred network domain depends on the nodes of the others."""
    keys = []
    for name in ("m", "n", "m"):
        state = cluster(
            node("m"),
            node("n"),
            group("g", 2, network=network),
            pod("g-0", group="g", on=name),
            pod("g-1", group="g"),
        )
        (found,), _ = pending_gangs(state, 0.0)
        keys.append(found.equivalence_key)
    assert (keys[0] == keys[1]) is (network is None)
    assert keys[0] == keys[2]


SLICES = SubgroupRule("slices", Selector(), size=2, min_subgroups=2, keys=("slice",))


def members(*slices: str, each: int = 2, **facts: object) -> list[PodInfo]:
    return [
        pod(f"job-{name}-{index}", group="job", labels=(("slice", name),), **facts)  # type: ignore[arg-type]
        for name in slices
        for index in range(each)
    ]


def where(decision: CycleResult) -> dict[str, NodeName]:
    return {binding.pod.removeprefix("d/job-"): binding.node for binding in decision.bindings}


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
