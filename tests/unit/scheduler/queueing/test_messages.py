"""Messages of pending gangs: shortage, users, position in the queue, what would help."""

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.queueing.messages import (
    MAX_MESSAGE,
    QueueLimit,
    amounts_text,
    clip_message,
    queue_limit_message,
)
from gangline.scheduler.types import (
    CycleResult,
    InterPodRules,
    NetworkTopologyRule,
    PlacementConstraints,
    PodTerm,
    QueueInfo,
)
from unit.scheduler.builders import (
    ANYWHERE,
    GPU,
    cluster,
    decide,
    gang,
    group,
    node,
    pod,
)


def group_message(decision: CycleResult, name: str) -> str:
    return next(v.message for v in decision.pending_reasons if v.group == f"d/{name}")


def pod_message(decision: CycleResult, name: str) -> str:
    messages = dict(entry for verdict in decision.pending_reasons for entry in verdict.pods)
    return next(text for key, text in messages.items() if key == f"d/{name}")


def test_places_in_line_are_counted_in_each_queue_and_rounded_when_many_wait() -> None:
    others = [thing for i in range(34) for thing in gang(f"g{i:02}", 1, age=i, cpu=4)]
    apart = [group("other", 1, queue="q"), pod("other-0", cpu=4, group="other")]
    state = cluster(node("n1", cpu=4), pod("there", on="n1"), QueueInfo("q"), *others, *apart)
    decision = decide(state)
    assert "First in queue 'default'" in group_message(decision, "g00")
    assert "9 before it in queue 'default'" in group_message(decision, "g09")
    assert "(d/g00, d/g01, d/g02 and more), waiting since" in group_message(decision, "g09")
    assert "2 before it in queue 'default' (d/g00, d/g01), waiting" in group_message(
        decision, "g02"
    )
    assert "about 30 before it in queue 'default'" in group_message(decision, "g33")
    assert "First in queue 'q'" in group_message(decision, "other")


AWAY_FROM_A = PlacementConstraints(
    inter_pod=InterPodRules(anti_affinity=(PodTerm(parse_label_selector("app=a"), "zone"),))
)


@pytest.mark.parametrize(
    ("busy", "constraints", "text"),
    [
        (3, ANYWHERE, "1 more of its pods finds a node with that much free."),
        (4, AWAY_FROM_A, "2 more of its pods find a node with that much free that accepts them."),
    ],
)
def test_message_counts_the_pods_that_need_a_node(
    busy: int, constraints: PlacementConstraints, text: str
) -> None:
    running = [
        each
        for n in range(busy)
        for each in (group(f"g{n}", 1), pod(f"g{n}-0", cpu=2, group=f"g{n}", on=f"n{n}"))
    ]
    nodes = [node(f"n{n}", cpu=4) for n in range(4)]
    state = cluster(*nodes, *running, *gang("job", 2, cpu=3, constraints=constraints))
    assert f"It starts when {text}" in group_message(decide(state), "job")


def test_message_of_a_preemptor_does_not_claim_it_never_fits() -> None:
    alone = pod("alone", cpu=4, on="n", is_ours=True)
    state = cluster(node("n", cpu=4), alone, group("job", 1, priority=5), pod("p", group="job"))
    decision = decide(state)
    assert [eviction.pod for eviction in decision.evictions] == [alone.key]
    for message in (group_message(decision, "job"), pod_message(decision, "p")):
        assert "It needs at least cpu 1 more, freed or added." in message
        assert "Pods are being evicted for it" in message
        assert "would not fit" not in message
    without = cluster(node("n", cpu=4), alone, group("job", 1), pod("p", group="job"))
    assert "It would not fit even if all running gangs had ended" in group_message(
        decide(without), "job"
    )


def test_message_of_a_gang_that_never_fits_says_why() -> None:
    """Pods that may never end, domains that are too small, and rules of single pods."""
    job = gang("job", 2, cpu=4)
    lasting = cluster(node("n1", cpu=4), node("n2", cpu=4), pod("alone", on="n1", cpu=3), *job)
    assert "(8 cpu requested, 8 in total, of which pods that may never end use 3)" in group_message(
        decide(lasting), "job"
    )
    zones = [node(f"n{zone}", cpu=4, labels={"zone": zone}) for zone in "ab"]
    near = group("job", 2, network=NetworkTopologyRule(label="zone"))
    message = group_message(decide(cluster(*zones, near, *job[1:])), "job")
    assert "(there is enough in total, but not within one domain)" in message
    alone = [pod(f"s{zone}", on=f"n{zone}", labels=(("app", "a"),)) for zone in "ab"]
    state = cluster(*zones, *alone, pod("p", constraints=AWAY_FROM_A))
    message = pod_message(decide(state), "p")
    assert "(nodes are excluded by its anti-affinity to other pods)" in message


def test_the_latest_start_is_stated_if_the_run_times_are_known() -> None:
    running = [group("runs", 1, max_run_time_s=600.0), pod("r", group="runs", on="n1", cpu=4)]
    started = [running[0], replace(running[1], started_at=100.0)]  # type: ignore[type-var]
    for there, free in ((started, "; free by 1970-01-01 00:11:40 UTC."), (running[1:], "")):
        known = [group("runs", 1)] if len(there) == 1 else []
        state = cluster(node("n1", cpu=4), *known, *there, *gang("job", 1, cpu=4))
        message = group_message(decide(state, 200.0), "job")
        assert f"running there now: d/runs{free or '.'}" in message


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        pytest.param(2, "is at its limit (1 of 2 cpu in use, 2 requested)", id="fits when empty"),
        pytest.param(3, "can never run it (1 of 2 cpu in use, 3 requested)", id="never fits"),
    ],
)
def test_message_says_whether_the_limit_would_ever_suffice(requested: int, text: str) -> None:
    cpu = {"used": 1000, "limit": 2000, "requested": 1000 * requested, "reserved": 0}
    limit = QueueLimit("q", **{name: {"cpu": amount} for name, amount in cpu.items()})
    assert text in queue_limit_message(limit)
    assert "An earlier gang" not in queue_limit_message(limit)


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        pytest.param({GPU: 8, "memory": 4 * 2**30, "cpu": 1500}, f"cpu 1.5, memory 4Gi, {GPU} 8"),
        pytest.param(
            {"ephemeral-storage": 3 * 2**50, "amd.com/gpu": 1, "memory": 2**40},
            "memory 1Ti, amd.com/gpu 1, ephemeral-storage 3Pi",
        ),
        pytest.param({"hugepages-2Mi": 2**21, "memory": 1536}, "memory 1.5Ki, hugepages-2Mi 2Mi"),
        pytest.param({"memory": 1023, "pods": 3, "cpu": 0, "hostport:tcp:80": 1}, "memory 1023"),
        pytest.param({"pods": 3, "cpu": 0}, "nothing"),
    ],
)
def test_amounts_have_units_processors_and_memory_come_first(
    amounts: dict[str, int], text: str
) -> None:
    assert amounts_text(amounts) == text


def test_long_messages_are_cut_and_keep_their_end() -> None:
    exact = "x" * MAX_MESSAGE
    assert clip_message(exact) == exact
    assert len(clip_message(exact + "x")) == MAX_MESSAGE
    assert clip_message(exact + "x").endswith("x…")
    with_end = clip_message(exact, "the end")
    assert len(with_end) == MAX_MESSAGE
    assert with_end.endswith("x… the end")
    assert clip_message("short", "end") == "short end"
