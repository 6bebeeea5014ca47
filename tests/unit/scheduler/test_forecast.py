"""Forecasts of starts on small states with known run times."""

from random import Random

import pytest
from benchmarks.scheduler.forecast import Calibration

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY
from gangline.scheduler.forecast import (
    MIN_SAMPLES,
    ExpectedStart,
    Forecaster,
    RunTime,
    StartForecast,
    copy_state,
    expected_start,
    summarize,
)
from gangline.scheduler.types import (
    GangId,
    NetworkTopologyRule,
    QueueInfo,
    single_pod_id,
)
from unit.scheduler.builders import cluster, decide, gang, group, node, pod, request

NOW = 10_000.0


def busy(**limits: float) -> SchedulerCache:
    """Two nodes, each with a gang that has run for 100 s, and gangs that wait."""
    return cluster(
        node("a", cpu=2),
        node("b", cpu=2),
        *(
            thing
            for name, on in (("x", "a"), ("y", "b"))
            for thing in (
                group(name, 1, max_run_time_s=limits.get(name, 0.0)),
                pod(f"{name}-0", cpu=2, group=name, on=on, started_at=NOW - 100),
            )
        ),
        *gang("first", 1, age=1, cpu=2),
        *gang("second", 1, age=2, cpu=2),
    )


def expected(state: SchedulerCache, name: str) -> ExpectedStart:
    found = expected_start(state, GangId(name), NOW, DEFAULT_POLICY)
    assert found is not None
    return found


def test_the_start_follows_from_the_ends_of_the_running_gangs() -> None:
    state = busy()
    gangs = [GangId("d/first"), GangId("d/second")]
    exact = dict.fromkeys(gangs, RunTime(estimate_s=1.0, limit_s=1.0))
    times = exact | {
        GangId("d/x"): RunTime(600.0, 600.0),
        GangId("d/y"): RunTime(1000.0, 1000.0),
    }
    for target in gangs:
        found = Forecaster(state, NOW, run_times=times).forecast(target)
        assert found.chance == 1.0
        assert 0 < found.earliest_s <= found.latest_s <= 501


def test_place_and_gangs_ahead_are_those_of_the_queue() -> None:
    state = busy(x=600.0, y=900.0)
    state.queues["other"] = QueueInfo("other")
    state.set_group(group("elsewhere", 1, queue="other"))
    state.set_pod(pod("elsewhere-0", cpu=2, group="elsewhere"))
    first, second = expected(state, "d/first"), expected(state, "d/second")
    assert (first.place, first.ahead) == (1, ())
    assert (second.place, second.ahead, second.queue) == (2, ("d/first",), "default")
    assert (second.known_run_times, second.run_times) == (2, 3)


def test_the_interval_lies_between_now_and_the_limits() -> None:
    found = expected(busy(x=600.0, y=600.0), "d/first").start
    assert 0 < found.earliest_s < found.latest_s <= 500


def test_a_gang_that_never_fits_is_not_expected_to_start() -> None:
    state = busy(x=600.0, y=600.0)
    state.set_group(group("huge", 1))
    state.set_pod(pod("huge-0", cpu=64, group="huge"))
    start = expected(state, "d/huge").start
    assert (start.earliest_s, start.latest_s, start.chance) == (None, None, 0.0)


def test_pods_that_may_run_for_ever_do_not_end() -> None:
    state = cluster(node("a", cpu=2), pod("server", cpu=2, on="a"), *gang("job", 1, cpu=2))
    assert expected(state, "d/job").start.chance == 0.0
    ends = pod("server", cpu=2, on="a", max_run_time_s=60.0, started_at=NOW - 10)
    state = cluster(node("a", cpu=2), ends, *gang("job", 1, cpu=2))
    assert expected(state, "d/job").start.chance == 1.0


def test_a_gang_that_starts_now_or_runs_is_not_in_line() -> None:
    state = cluster(node("a", cpu=2), *gang("job", 1, cpu=1))
    assert expected_start(state, GangId("d/job"), NOW, DEFAULT_POLICY) is None
    assert expected_start(busy(), GangId("d/x"), NOW, DEFAULT_POLICY) is None


def test_the_state_stays_as_it_is() -> None:
    state = busy(x=600.0, y=600.0)
    before = decide(state, NOW), dict(state.pods), dict(state.groups), state.nodes.used.copy()
    expected(state, "d/second")
    assert (decide(state, NOW), dict(state.pods), dict(state.groups)) == before[:3]
    assert (state.nodes.used == before[3]).all()


def test_equal_seeds_give_equal_forecasts() -> None:
    state = busy(x=600.0)
    found = [Forecaster(state, NOW, seed=3).forecast(GangId("d/second")) for _ in range(2)]
    assert found[0] == found[1]
    assert Forecaster(state, NOW, seed=4).forecast(GangId("d/second")) != found[0]


@pytest.mark.parametrize(
    ("things", "change"),
    [
        pytest.param(gang("job", 4, cpu=2), "with 2 instead of 4 pods", id="fewer members"),
        pytest.param(
            [
                group("job", 2, network=NetworkTopologyRule(tier=1)),
                *(pod(f"job-{n}", cpu=2, group="job") for n in range(2)),
            ],
            "without a required network domain",
            id="topology",
        ),
        pytest.param(
            [group("job", 1, queue="full"), pod("job-0", cpu=2, group="job")],
            "in queue 'default'",
            id="queue",
        ),
    ],
)
def test_changes_that_make_it_sooner_are_simulated(things: list[object], change: str) -> None:
    state = cluster(
        *(node(name, cpu=2) for name in "abcd"),
        QueueInfo("full", capability=request(cpu=1, pods=0)),
        group("long", 2, max_run_time_s=500_000.0),
        *(pod(f"l{on}", cpu=2, group="long", on=on, started_at=NOW) for on in "ab"),
        group("short", 2, max_run_time_s=1000.0),
        *(pod(f"s{on}", cpu=2, group="short", on=on, started_at=NOW - 100) for on in "cd"),
        *things,  # type: ignore[arg-type]
    )
    sooner = expected(state, "d/job").sooner
    assert change in [each.change for each in sooner]
    for each in sooner:
        assert each.start.latest_s <= 900


def test_pod_and_gang_of_one_name_end_and_start_apart() -> None:
    def exactly(seconds: float) -> RunTime:
        return RunTime(seconds, seconds)

    state = cluster(
        node("a", cpu=2),
        node("b", cpu=2),
        group("x", 1),
        pod("x-0", cpu=2, group="x", on="a", started_at=NOW),
        pod("x", cpu=2, on="b", max_run_time_s=1000.0, started_at=NOW),
        *gang("job", 2, cpu=2),
        pod("job", cpu=2, age=9, max_run_time_s=1000.0),
    )
    gang_x, pod_x = GangId("d/x"), single_pod_id("d/x")
    gang_job, pod_job = GangId("d/job"), single_pod_id("d/job")
    times = {gang_x: exactly(300), pod_x: exactly(700), gang_job: exactly(500)}
    found = Forecaster(state, NOW, run_times=times).forecast_all([gang_job, pod_job])
    # The gang needs both nodes: it starts once the longer of the two has ended, at most.
    job = found[gang_job]
    assert 300 < job.earliest_s <= job.latest_s <= 701
    after = found[pod_job]
    assert after.earliest_s > job.earliest_s


def test_pending_pod_is_not_taken_for_the_running_gang_of_its_name() -> None:
    state = cluster(
        node("a", cpu=2),
        group("job", 1, max_run_time_s=600.0),
        pod("job-0", cpu=2, group="job", on="a", started_at=NOW - 100),
        pod("job", cpu=2, age=1, max_run_time_s=60.0),
        pod("later", cpu=2, age=2, max_run_time_s=60.0),
    )
    for name, place, ahead in (("d/job", 1, ()), ("d/later", 2, ("d/job",))):
        found = expected_start(state, single_pod_id(name), NOW, DEFAULT_POLICY)
        assert (found.place, found.ahead, found.known_run_times) == (place, ahead, place)
        assert found.start.chance == 1.0
        assert found.start.latest_s <= 561
    assert expected_start(state, GangId("d/job"), NOW, DEFAULT_POLICY) is None


def test_the_interval_is_the_middle_of_the_starts() -> None:
    starts = [float(number) for number in range(19)]
    assert summarize(starts) == StartForecast(1.0, 17.0, 9.0, 1.0, 19)
    never = [*starts[:16], *[float("inf")] * 3]
    assert summarize(never) == StartForecast(1.0, None, 9.0, 16 / 19, 19)


def test_a_copy_decides_like_the_original() -> None:
    state = busy(x=600.0)
    assert decide(copy_state(state), NOW) == decide(state, NOW)


TRIALS = 30
AHEAD = (GangId("d/runs"), GangId("d/next"))


def interval_and_start(seed: int) -> tuple[float, float, float]:
    """One node, a gang that has just begun, and two that wait: the last one's interval and start.

    The true run times are drawn from what is known about them.
    """
    random = Random(seed)
    state = cluster(
        node("n", cpu=1),
        group("runs", 1),
        pod("runs-0", group="runs", on="n", started_at=NOW),
        *gang("next", 1, age=1),
        *gang("last", 1, age=2),
    )
    known = {
        name: random.choice([RunTime(estimate_s=size), RunTime(limit_s=size)])
        for name, size in ((name, 1000.0 * random.uniform(1, 9)) for name in AHEAD)
    }
    start = sum(each.draw(random, 0.0) for each in known.values())
    forecaster = Forecaster(state, NOW, run_times=known, seed=seed)
    found = forecaster.forecast(GangId("d/last"), samples=MIN_SAMPLES)
    assert found.earliest_s is not None
    assert found.latest_s is not None
    return found.earliest_s, found.latest_s, start


def test_interval_contains_the_start_in_most_independent_trials() -> None:
    trials = [interval_and_start(seed) for seed in range(TRIALS)]
    covered = [earliest - 1 <= start <= latest + 1 for earliest, latest, start in trials]
    assert 0.7 <= sum(covered) / len(covered) <= 0.9
    assert any(start < earliest - 1 for earliest, _, start in trials)
    assert any(start > latest + 1 for _, latest, start in trials)


@pytest.mark.parametrize("shape", ["philly", "pai", "helios"])
def test_a_trace_gives_forecasts_and_their_starts(shape: str) -> None:
    """Forecasts of one trace share their errors, so that a few of them have no fixed coverage."""
    covered = Calibration(shape, 12, jobs=30, nodes=2, forecasts=3, samples=MIN_SAMPLES).run()
    assert len(covered) == 3
    assert any(covered)
