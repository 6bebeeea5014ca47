"""A cycle places complete gangs or nothing, in scheduling order, on real nodes."""

from typing import Any

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.reservations import LOST_MEMBER_RESERVATION_S
from gangline.scheduler.types import (
    CycleResult,
    NetworkTopologyRule,
    QueueInfo,
    TaintInfo,
)
from unit.scheduler.builders import (
    GPU,
    checked_cycle,
    cluster,
    decide,
    gang,
    group,
    node,
    on_label,
    placed,
    pod,
    request,
)
from unit.scheduler.device_builders import user


def reason(decision: CycleResult, name: str) -> str:
    return next(v.reason for v in decision.pending_reasons if v.group == f"d/{name}")


def message(decision: CycleResult, name: str) -> str:
    key = f"d/{name}"
    return next(
        v.message for v in decision.pending_reasons if key in (v.group, *(p for p, _ in v.pods))
    )


def pod_message(decision: CycleResult, name: str) -> str:
    messages = dict(entry for verdict in decision.pending_reasons for entry in verdict.pods)
    return messages[f"d/{name}"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("minimum", "roles", "sizes", "starts"),
    [
        (1, {}, [4, 1, 1, 1], {1, 2, 3}),
        (2, {}, [4, 1, 1], {1, 2}),
        (3, {}, [4, 1, 1], set()),
        (2, {"ps": 1}, [4, 1, 1], set()),
        (2, {"worker": 2}, [4, 2, 1], {1, 2}),
    ],
)
def test_elastic_gang_starts_with_the_pods_that_the_limit_of_its_queue_allows(
    minimum: int, roles: dict[str, int], sizes: list[int], starts: set[int]
) -> None:
    """The first pod, of the role ``ps``, is larger than the limit."""
    pods = [
        pod(f"g-{i}", cpu=cpu, group="g", role="worker" if i else "ps")
        for i, cpu in enumerate(sizes)
    ]
    limit = QueueInfo("q", capability=request(cpu=3, pods=0))
    elastic = group("g", minimum, queue="q", min_task_member=tuple(roles.items()))
    decision = checked_cycle(cluster(node("n", cpu=16), limit, elastic, *pods))
    assert set(placed(decision)) == {f"g-{i}" for i in starts}


def test_missing_role_is_named_in_the_message() -> None:
    state = cluster(
        node("a"),
        group("job", 1, min_task_member=(("ps", 1),)),
        pod("w", group="job", role="worker"),
    )
    decision = decide(state)
    assert reason(decision, "job") == "NotEnoughPodsOfTask"
    assert "'ps'" in message(decision, "job")


def test_unusable_nodes_have_kubernetes_messages() -> None:
    state = cluster(
        node("cordoned", unschedulable=True),
        node("gone", ready=False),
        node("tainted", taints=(TaintInfo("gpu", "yes", "NoSchedule"),)),
        node("unlike", labels={"zone": "b"}),
        node("small", cpu=1, memory=1, labels={"zone": "a"}),
        pod("p", cpu=2, memory=2, constraints=on_label(zone="a")),
    )
    decision = decide(state)
    assert pod_message(decision, "p").startswith(
        "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, "
        "1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were not ready, "
        "1 node(s) were unschedulable."
    )


def test_cluster_without_nodes_has_its_message() -> None:
    assert "no nodes available to schedule pods" in pod_message(decide(cluster(pod("p"))), "p")


def test_too_many_pods_is_a_reason_of_its_own() -> None:
    state = cluster(node("a", pods=1), pod("there", on="a"), pod("p"))
    assert "1 Too many pods" in pod_message(decide(state), "p")


def test_resources_outside_the_reservation_are_used() -> None:
    state = cluster(
        node("a", cpu=4, gpu=8),
        node("b", cpu=4),
        group("old", 1),
        pod("old-0", cpu=1, gpu=8, group="old", on="a"),
        *gang("large", 1, age=1, gpu=8),
        *gang("small", 1, age=2, cpu=2),
    )
    assert placed(decide(state)) == {"small-worker-0": "b"}


def test_a_port_of_the_node_is_given_once() -> None:
    state = cluster(node("a"), pod("first", port=80, on="a"), pod("second", port=80))
    decision = decide(state)
    assert not decision.bindings
    assert pod_message(decision, "second").startswith(
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )
    assert "ports tcp:80" in pod_message(decision, "second")


def test_a_port_that_was_given_back_is_free_on_nodes_that_came_later() -> None:
    state = cluster(node("a"), pod("first", port=80, on="a"))
    state.remove_pod(pod("first").key)
    state.remove_node(node("a").name)
    state.set_node(node("b"))
    state.set_pod(pod("second", port=80))
    assert placed(decide(state)) == {"second": "b"}


def a_gang_that_lost_a_member() -> SchedulerCache:
    lost = pod("b1", group="broken", on="a")
    state = cluster(
        node("a", cpu=2),
        group("broken", 2),
        pod("b0", group="broken", on="a"),
        lost,
        *gang("other", 1, age=1),
    )
    state.remove_pod(lost.key)
    state.record_lost_member(lost, at=100.0, keep_s=LOST_MEMBER_RESERVATION_S)
    return state


def test_node_of_a_lost_member_is_reserved_until_it_is_recreated() -> None:
    state = a_gang_that_lost_a_member()
    decision = decide(state, now=101.0)
    assert not decision.bindings
    assert "reserved for d/broken" in message(decision, "other")
    state.set_pod(pod("b1", group="broken"))
    assert placed(decide(state, now=102.0)) == {"b1": "a"}


def test_recreated_member_takes_no_place_from_another_lost_one() -> None:
    """Of three members one runs, one is recreated and fits nowhere yet, one does not exist."""
    lost = pod("b2", cpu=1, group="broken", on="a")
    state = cluster(
        node("a", cpu=2),
        group("broken", 3),
        pod("b0", cpu=1, group="broken", on="a"),
        pod("b1", cpu=1, group="broken"),
        lost,
        *gang("other", 1, age=1),
    )
    state.remove_pod(lost.key)
    state.record_lost_member(lost, at=100.0, keep_s=LOST_MEMBER_RESERVATION_S)
    assert not decide(state, now=101.0).bindings


def test_the_place_of_a_lost_member_is_not_held_for_ever() -> None:
    assert set(
        placed(decide(a_gang_that_lost_a_member(), now=100.0 + LOST_MEMBER_RESERVATION_S))
    ) == {"other-worker-0"}


def test_no_place_is_held_for_a_gang_that_does_not_run_any_more() -> None:
    state = a_gang_that_lost_a_member()
    state.remove_pod(pod("b0").key)
    assert set(placed(decide(state, now=101.0))) == {"other-worker-0"}


def test_no_place_is_held_for_a_gang_that_has_its_minimum() -> None:
    state = a_gang_that_lost_a_member()
    smaller = group("broken", 1)
    state.groups[smaller.key] = smaller
    assert set(placed(decide(state, now=101.0))) == {"other-worker-0"}


def test_pods_with_claims_of_devices_are_refused_with_a_reason() -> None:
    state = cluster(
        node("n1"),
        user("alone", "c"),
        group("gang", 2),
        user("gang-0", "c", group="gang"),
        pod("gang-1", group="gang"),
        pod("other"),
    )
    result = decide(state)
    assert [str(each.pod) for each in result.bindings] == ["d/other"]
    refused = {v.reason: {str(key) for key, _ in v.pods} for v in result.pending_reasons}
    assert refused.keys() == {"ResourceClaimsNotSupported"}
    texts = {str(key): text for v in result.pending_reasons for key, text in v.pods}
    assert texts.keys() == {"d/alone", "d/gang-0", "d/gang-1"}
    assert all("spec.resourceClaims" in text for text in texts.values())


def test_an_elastic_gang_is_told_what_its_minimum_lacks() -> None:
    members = [pod(f"job-{n}", cpu=5, group="job") for n in range(10)]
    first = pod("first-0", cpu=5, group="first", on="n")
    state = cluster(node("n", cpu=10), group("first", 1), first, group("job", 2), *members)
    [waits] = decide(state).pending_reasons
    assert "Requested: cpu 10; free on the 1 node that accept it: cpu 5." in waits.message
    assert "It needs at least cpu 5 more, freed or added." in waits.message
    state.set_node(node("more", cpu=5))
    assert len(decide(state).bindings) == 2


def test_a_queue_without_a_limit_is_told_of_the_guarantees_of_others() -> None:
    guaranteed = QueueInfo("g", guarantee=(("cpu", 6000),))
    state = cluster(node("n", cpu=8), guaranteed, *gang("job", 1, cpu=3))
    [waits] = decide(state).pending_reasons
    assert "can never run it (0 of 2 cpu in use, 3 requested): other queues" in waits.message
    state = cluster(node("n", cpu=8), guaranteed, pod("p", cpu=1, on="n"), *gang("job", 1, cpu=2))
    [waits] = decide(state).pending_reasons
    assert "uses all that the guarantees of other queues leave" in waits.message
    state.queues["g"] = QueueInfo("g", guarantee=(("cpu", 5000),))
    assert decide(state).bindings


def test_a_pod_that_would_fit_alone_has_a_reason() -> None:
    rule = NetworkTopologyRule(tier=1)
    members = [pod(f"job-{n}", cpu=1, group="job") for n in range(2)]
    state = cluster(node("a", cpu=4), node("b", cpu=4), group("job", 2, network=rule), *members)
    [waits] = decide(state).pending_reasons
    assert "2 node(s) didn't fit the pods of the gang together." in waits.message


@pytest.mark.parametrize("grouped", [False, True])
def test_a_pod_that_never_preempts_does_not_stop_an_equal_one_that_does(grouped: bool) -> None:
    def waiting(name: str, age: float, **fields: Any) -> list[Any]:
        groups = [group(name, 1, age, priority=9)] if grouped else []
        of = {"group": name} if grouped else {}
        return [*groups, pod(f"{name}-0", cpu=4, priority=9, age=age, **of, **fields)]

    state = cluster(
        *(node(name, cpu=4) for name in "ab"),
        *(pod(f"low-{name}", cpu=4, on=name) for name in "ab"),
        *waiting("never", 1, may_preempt=False),
        *waiting("preempts", 2),
    )
    [eviction] = decide(state).evictions
    assert eviction.pod.startswith("d/low-")


def test_gang_that_is_skipped_as_equal_to_others_is_checked_against_the_limit_of_its_queue() -> (
    None
):
    """The limit is reached between the second gang of the queue and the third."""
    limit = (("cpu", 4000),)
    state = cluster(
        node("n", cpu=8, gpu=4),
        QueueInfo("default", reclaimable=False),
        QueueInfo("top", weight=3, capability=limit),
        QueueInfo("a", parent="top", deserved=(("cpu", 4000), (GPU, 4))),
        QueueInfo("b", parent="top", deserved=limit),
        group("busy", 1),
        pod("busy-0", cpu=0, gpu=4, group="busy", on="n"),
        *(group(f"a{age}", 1, age, queue="a") for age in (1, 2, 4, 5)),
        pod("a1-0", cpu=0.1, gpu=1, group="a1", age=1),
        *(pod(f"a{age}-0", cpu=1, gpu=1, group=f"a{age}", age=age) for age in (2, 4, 5)),
        group("b", 1, 3, queue="b"),
        pod("b-0", cpu=3.5, group="b", age=3),
    )
    decision = decide(state)
    assert set(placed(decision)) == {"b-0"}
    assert reason(decision, "a2") == "NotEnoughResources"
    assert reason(decision, "a4") == reason(decision, "a5") == "QueueLimit"
