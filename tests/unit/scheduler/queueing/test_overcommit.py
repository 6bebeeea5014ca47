"""Gangs without pods are admitted as far as the cluster holds them: enqueue, overcommit, sla."""

import pytest
from msgspec import convert

from gangline.api.go_duration import parse_go_duration
from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.overcommit import (
    CREATION_TIMEOUT_S,
    AdmissionPolicy,
    next_deadline,
)
from gangline.scheduler.types import CycleResult, PodGroupInfo, PodInfo, QueueInfo
from unit.scheduler.builders import GPU, cluster, gang, group, node, pod, request

TEN = node("n", cpu=10)
A, B = QueueInfo("a"), QueueInfo("b")


def asks(name: str, cpu: float, size: int = 1, gpu: int = 0, **facts: object) -> PodGroupInfo:
    """Make a group without pods that waits for admission."""
    amounts = request(cpu, gpu=gpu, pods=0)
    return group(name, size, min_resources=amounts, is_admitted=False, **facts)


def runs(name: str, cpu: float, **facts: object) -> list[PodInfo | PodGroupInfo]:
    return [group(name, 1, **facts), pod(f"{name}-0", cpu=cpu, group=name, on="n")]


def admitted(result: CycleResult) -> list[str]:
    return sorted(key.removeprefix("d/") for key in result.admitted)


def reasons(result: CycleResult) -> dict[str, str]:
    return {
        (reason.group or "").removeprefix("d/"): reason.reason for reason in result.pending_reasons
    }


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        pytest.param([asks("g", 12)], ["g"], id="as much as the factor allows"),
        pytest.param([asks("g", 12.1)], [], id="more than that"),
        pytest.param([asks("g", 1), *runs("r", 10)], ["g"], id="beside what is in use"),
        pytest.param([asks("g", 3), *runs("r", 10)], [], id="more than is left"),
        pytest.param([asks("g", 3), *gang("w", 2, cpu=5)], ["g"], id="gangs that state nothing"),
        pytest.param(
            [asks("g", 3), group("w", 2, min_resources=request(10)), pod("w-0", group="w")],
            [],
            id="all that admitted gangs ask for",
        ),
        pytest.param(
            [asks("g", 5), asks("h", 5, age=1), asks("i", 5, age=2), asks("j", 2, age=3)],
            ["g", "h", "j"],
            id="in order, and smaller ones after a refused one",
        ),
        pytest.param(
            [asks("old", 7), asks("high", 7, age=1, priority=1)], ["high"], id="by priority"
        ),
        pytest.param(
            [
                A,
                B,
                *(asks(f"a{n}", 4, queue="a") for n in range(3)),
                asks("b", 4, age=9, queue="b"),
            ],
            ["a0", "a1", "b"],
            id="queues in turn",
        ),
        pytest.param(
            [A, B, *runs("r", 10, queue="a"), asks("g", 5, queue="b"), asks("h", 5, queue="a")],
            ["g"],
            id="within the share, though another queue uses all",
        ),
        pytest.param(
            [*runs("r", 10), asks("g", 9, priority=1)], ["g"], id="instead of a lower priority"
        ),
        pytest.param(
            [*runs("r", 10, preemptable=False), asks("g", 9, priority=1)],
            [],
            id="not instead of one that is protected",
        ),
        pytest.param([*runs("r", 10), asks("g", 9, waiting_time_s=50.0)], ["g"], id="overdue"),
        pytest.param([*runs("r", 10), asks("g", 9, waiting_time_s=50.5)], [], id="not yet overdue"),
        pytest.param([*runs("r", 10), asks("g", 9), pod("g-0", group="g")], ["g"], id="with pods"),
        pytest.param([asks("g", 1, gpu=8)], ["g"], id="a resource that no node has"),
        pytest.param(
            [asks("g", 3), group("w", 2, min_resources=request(10))],
            [],
            id="what a gang asks for that was admitted before a restart",
        ),
    ],
)
def test_gangs_without_pods_are_admitted_as_far_as_the_factor_allows(
    things: list[PodInfo | PodGroupInfo | QueueInfo], expected: list[str]
) -> None:
    result = run_cycle(cluster(TEN, *things), 50.0)
    assert admitted(result) == expected


def test_refused_gang_is_told_the_numbers() -> None:
    state = cluster(node("n", cpu=32, gpu=8), *runs("one", 32), asks("two", 32, size=32, gpu=1))
    (reason,) = run_cycle(state, 0.0).pending_reasons
    assert (reason.reason, reason.pods) == (messages.OVERCOMMITTED, ())
    assert "asks for cpu 32. cpu 32 are in use" in reason.message
    assert "up to cpu 38.4 (the cluster times overcommit-factor)" in reason.message


def test_factors_of_resources_and_no_factor() -> None:
    state = cluster(node("n", cpu=10, gpu=10), asks("g", 15), asks("h", 1, gpu=11))
    for policy, expected in (
        (AdmissionPolicy(1.0, ((GPU, 1.1), ("cpu", 1.4))), ["h"]),
        (AdmissionPolicy(1.0, (("cpu", 1.6), ("absent", 9.0))), ["g"]),
        (AdmissionPolicy(None), ["g", "h"]),
    ):
        assert admitted(run_cycle(state, 0.0, EvictionPolicy(admission=policy))) == expected


def test_lower_priorities_count_where_they_cannot_be_preempted() -> None:
    state = cluster(TEN, *runs("r", 10), asks("g", 9, priority=1))
    assert admitted(run_cycle(state, 0.0, EvictionPolicy(preempt=False))) == []


def test_limits_of_queues_hold_for_gangs_without_pods_together() -> None:
    limited = QueueInfo("q", capability=request(cpu=5, pods=0))
    gangs = [asks(name, 3, queue="q", waiting_time_s=1.0) for name in "gh"]
    result = run_cycle(cluster(node("n", cpu=99), limited, *gangs), 50.0)
    assert admitted(result) == ["g"]
    assert reasons(result) == {"h": messages.QUEUE_LIMIT}


def test_closed_queue_admits_nothing() -> None:
    state = cluster(TEN, QueueInfo("q", open=False), asks("g", 1, queue="q"))
    assert admitted(run_cycle(state, 0.0)) == []


def test_admitted_gangs_count_until_their_pods_exist_or_are_overdue() -> None:
    state = cluster(TEN, asks("g", 10), asks("h", 10, age=1))
    state.admit(run_cycle(state, 50.0).admitted, 50.0)
    state.set_group(state.groups[next(iter(state.admitted_at))])  # an update before the phase
    assert admitted(run_cycle(state, 50.0 + CREATION_TIMEOUT_S - 1)) == []
    assert admitted(run_cycle(state, 50.0 + CREATION_TIMEOUT_S)) == ["h"]
    state.set_pod(pod("g-0", cpu=10, group="g"))
    assert admitted(run_cycle(state, 50.0 + CREATION_TIMEOUT_S)) == []


def overdue_world() -> SchedulerCache:
    world: list[PodInfo | PodGroupInfo] = []
    for name, facts in {
        "high": {"priority": 5},
        "old": {},
        "soon": {"age": 2, "waiting_time_s": 60.0},
        "later": {"age": 1, "waiting_time_s": 90.0},
    }.items():
        world += [group(name, 1, **facts), pod(f"{name}-0", cpu=10, group=name)]
    return cluster(TEN, *world)


@pytest.mark.parametrize(
    ("now", "policy", "order"),
    [
        pytest.param(10.0, AdmissionPolicy(), ["high", "soon", "later", "old"], id="deadlines"),
        pytest.param(70.0, AdmissionPolicy(), ["soon", "high", "later", "old"], id="one is past"),
        pytest.param(
            10.0,
            AdmissionPolicy(waiting_time_s=5.0),
            ["high", "old", "soon", "later"],
            id="of the configuration",
        ),
    ],
)
def test_waiting_times_order_gangs(now: float, policy: AdmissionPolicy, order: list[str]) -> None:
    state, served = overdue_world(), []
    for _ in order:
        result = run_cycle(state, now, EvictionPolicy(admission=policy))
        (binding,) = result.bindings
        name = binding.pod.removeprefix("d/").removesuffix("-0")
        served.append(name)
        state.remove_pod(binding.pod)
        state.remove_group(binding.group)  # type: ignore[arg-type]
    assert served == order


def test_next_cycle_runs_when_a_gang_has_waited_too_long() -> None:
    state = overdue_world()
    state.set_group(asks("unadmitted", 1, waiting_time_s=40.0))
    assert next_deadline(state, AdmissionPolicy(), 10.0) == 40.0
    assert next_deadline(state, AdmissionPolicy(), 40.0) == 62.0
    assert next_deadline(state, AdmissionPolicy(), 91.0) is None
    assert next_deadline(state, AdmissionPolicy(waiting_time_s=100.0), 91.0) == 100.0


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1h2m3.5s", 3723.5), ("90m", 5400.0), (".5s", 0.5), ("250ms", 0.25), ("3µs", 3e-6),
     ("", 0.0), ("5", 0.0), ("-1h", 0.0), ("1h soon", 0.0), ("0s", 0.0)],
)  # fmt: skip
def test_durations_are_those_of_go(written: str, seconds: float) -> None:
    assert parse_go_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize("annotation", ["sla-waiting-time", "volcano.sh/sla-waiting-time"])
def test_groups_state_phase_and_waiting_time(annotation: str) -> None:
    for phase, expected in (("", False), ("Pending", False), ("Inqueue", True), ("Running", True)):
        written = convert(
            {"metadata": {"annotations": {annotation: "2m"}}, "status": {"phase": phase}}, PodGroup
        )
        facts = group_info(written, {})
        assert (facts.waiting_time_s, facts.is_admitted) == (120.0, expected)
