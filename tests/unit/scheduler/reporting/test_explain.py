"""Explanations: the reason of the cycle, with queues, requests and nodes."""

import pytest

from gangline.scheduler.reporting.explain import (
    CAPACITY_RESERVED,
    GATED,
    HAS_CAPACITY,
    NOT_OURS,
    PLACED,
    RUNS_PARTLY,
    STARTS,
    WAITS,
    explain_group,
    explain_pod,
)
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.types import GroupKey, PodKey, QueueInfo, TaintInfo
from unit.scheduler.builders import cluster, gang, group, listing, node, on_label, pod

JOB = GroupKey("d/job")


def test_nodes_are_listed_with_the_reason_that_excludes_the_pods() -> None:
    state = cluster(
        node("a", cpu=4, labels={"kind": "x"}),
        node("b", cpu=2, labels={"kind": "x"}),
        node("c", cpu=2),
        node("d", cpu=9, labels={"kind": "x"}, taints=(TaintInfo("gpu", "", "NoSchedule"),)),
        group("other", 1),
        pod("other-0", cpu=1, group="other", on="b"),
        *gang("job", 2, cpu=3, constraints=on_label(kind="x"), role="worker"),
    )
    explanation = explain_group(state, JOB, 0.0)
    assert (explanation.state, explanation.reason, explanation.minimum) == (
        WAITS,
        "NotEnoughResources",
        2,
    )
    (need,) = explanation.needs
    assert (need.role, need.asked) == ("worker", "cpu 3")
    assert [(similar.why, similar.nodes) for similar in need.nodes] == [
        (HAS_CAPACITY, ("a",)),
        ("Insufficient cpu", ("b",)),
        ("node(s) didn't match Pod's node affinity/selector", ("c",)),
        ("node(s) had untolerated taint {gpu: }", ("d",)),
    ]
    assert need.nodes[1].most_free == "cpu 1"


def test_reserved_nodes_are_listed_separately() -> None:
    state = cluster(
        node("a", cpu=4),
        group("running", 1),
        pod("r", cpu=2, group="running", on="a"),
        *gang("large", 1, cpu=4),
        *gang("job", 1, age=5, cpu=2),
    )
    explanation = explain_group(state, JOB, 0.0)
    assert [similar.why for similar in explanation.needs[0].nodes] == [CAPACITY_RESERVED]
    assert "reserved for d/large" in explanation.message
    assert "1 before it" in explanation.message
    assert explain_group(state, GroupKey("d/large"), 0.0).planned == {"d/large-worker-0": "a"}


def test_queues_are_listed_up_to_the_top_with_their_figures() -> None:
    state = cluster(
        node("a", cpu=8),
        QueueInfo("team"),
        QueueInfo("team-a", parent="team", capability=(("cpu", 3000),)),
        group("first", 1, queue="team-a"),
        pod("first-0", cpu=2, group="first", on="a"),
        group("job", 1, queue="team-a"),
        pod("job-0", cpu=2, group="job"),
    )
    explanation = explain_group(state, JOB, 0.0)
    assert explanation.reason == "QueueLimit"
    assert [(q.name, q.used, q.requested, q.most) for q in explanation.queues] == [
        ("team-a", "cpu 2", "cpu 4", "cpu 3"),
        ("team", "cpu 2", "cpu 4", ""),
    ]


def test_running_starting_and_foreign_pods_are_explained() -> None:
    state = cluster(node("a", cpu=8), *gang("job", 1), group("up", 1))
    state.set_pod(pod("up-0", group="up", on="a"))
    for name, facts in (("gated", {"is_gated": True}), ("foreign", {"is_ours": False})):
        state.set_group(group(name, 1))
        state.set_pod(pod(f"{name}-0", group=name, **facts))
    explanation = {n: explain_group(state, GroupKey(f"d/{n}"), 0.0) for n in ("job", "up", "gated")}
    assert explanation["job"].state == STARTS
    assert explanation["job"].starting == {"d/job-worker-0": "a"}
    assert (explanation["up"].state, explanation["up"].placed) == (PLACED, {"d/up-0": "a"})
    assert explanation["gated"].state == GATED
    assert explain_group(state, GroupKey("d/foreign"), 0.0).state == NOT_OURS


@pytest.mark.parametrize(
    ("running", "free", "state"),
    [(0, 0, WAITS), (0, 3, STARTS), (2, 0, RUNS_PARTLY), (1, 0, WAITS)],
)
def test_an_elastic_gang_that_has_its_minimum_does_not_wait(
    running: int, free: int, state: str
) -> None:
    members = [
        pod(f"job-{n}", cpu=1, group="job", on="a" if n < running else None) for n in range(4)
    ]
    elastic = cluster(node("a", cpu=running + free), group("job", 2), *members)
    explained = explain_group(elastic, JOB, 0.0)
    assert explained.state == state
    assert len(explained.starting) == free
    assert explained.message


def test_a_pod_of_its_own_is_explained_too() -> None:
    state = cluster(node("a", cpu=1), pod("p", cpu=2))
    explanation = explain_pod(state, PodKey("d/p"), 0.0)
    assert explanation.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
    with pytest.raises(KeyError):
        explain_pod(state, PodKey("d/other"), 0.0)


async def test_a_cluster_that_is_read_has_the_extended_resources_of_device_classes() -> None:
    container = {"resources": {"requests": {"example.com/gpu": "1"}}}
    client = listing(
        deviceclasses=[
            {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}
        ],
        pods=[
            {
                "metadata": {"name": "p", "namespace": "d"},
                "spec": {"schedulerName": "gangline", "containers": [container]},
            }
        ],
    )
    state = await read_cluster_state(client, frozenset({"gangline"}))
    assert "device class 'gpu' offers" in explain_pod(state, PodKey("d/p"), 0.0).message
