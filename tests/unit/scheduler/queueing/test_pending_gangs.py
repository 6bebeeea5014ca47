"""Pending gangs: what they need, request and know about their run time, and who is equivalent."""

import pytest

from gangline.scheduler.queueing.gangs import (
    MAX_RESTART_RESERVATION_S,
    PendingGang,
    active_previous_nodes,
    missing_roles,
    pending_gangs,
)
from gangline.scheduler.types.types import (
    NetworkTopologyRule,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PreviousNodes,
)
from unit.scheduler.builders import ANYWHERE, cluster, gang, group, node, pod, request

NOW = 1000.0


def pending(*things: PodGroupInfo | PodInfo) -> dict[str, PendingGang]:
    found, _ = pending_gangs(cluster(node("n", cpu=64), *things), NOW)
    return {each.name.removeprefix("d/"): each for each in found}


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


def test_running_members_decide_where_a_gang_with_a_network_rule_fits() -> None:
    rule = NetworkTopologyRule(True, 1)
    state = cluster(
        node("n0", cpu=4),
        node("n1", cpu=4),
        *(
            each
            for name, on in (("a", "n0"), ("b", "n1"), ("c", "n0"))
            for each in (
                group(name, 2, network=rule),
                pod(f"{name}-0", group=name, on=on),
                pod(f"{name}-1", group=name),
            )
        ),
    )
    found, _ = pending_gangs(state, NOW)
    keys = {each.name.removeprefix("d/"): each.equivalence_key for each in found}
    assert keys["a"] is keys["c"]
    assert keys["a"] is not keys["b"]


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
