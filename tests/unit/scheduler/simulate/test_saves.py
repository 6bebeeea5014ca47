"""Saves before evictions on virtual time: at most one step is lost, and the node stays reserved."""

from pathlib import Path

import pytest

from gangline.cli.main import run
from gangline.scheduler.simulate.cluster import uniform_cluster
from gangline.scheduler.simulate.engine import JobRun, Simulation
from gangline.scheduler.simulate.generate import TRACE_SHAPES, generate_trace
from gangline.scheduler.simulate.saves import plan_save
from gangline.scheduler.simulate.trace import TraceError, TraceJob, pod_request, read_trace
from gangline.scheduler.types.types import QueueInfo
from unit.scheduler.builders import request
from unit.scheduler.oracle.check import check_result

STEP_S = 4.0


def job(name: str, arrival: float, duration: float, size: int = 2, **facts: object) -> TraceJob:
    facts = {"request": pod_request(1, 0, 0), "minimum": size, **facts}
    return TraceJob(name, arrival, duration, size, **facts)  # type: ignore[arg-type]


def saving(name: str, arrival: float, duration: float, **facts: object) -> TraceJob:
    return job(name, arrival, duration, **{"checkpoint_every": 60, "step_s": STEP_S, **facts})


def simulated(jobs: list[TraceJob], **settings: object) -> dict[str, JobRun]:
    simulation = Simulation(
        uniform_cluster(2, 1, "0", 0),
        jobs,
        watchers=[check_result],
        **settings,  # type: ignore[arg-type]
    )
    return simulation.run().runs


def test_request_is_answered_after_the_present_step_and_the_write() -> None:
    plan = plan_save(10.0, 1.0, 1.0, 4.0, 2.5)
    assert (plan.stops_at, plan.answers_at) == (13.0, 15.5)
    assert plan_save(9.0, 1.0, 1.0, 4.0, 0.0).stops_at == 9.0, "at the end of a step"
    assert plan_save(10.0, 1.0, 2.0, 4.0, 0.0).stops_at == 11.0


def test_evicted_gang_loses_no_work_and_the_other_gang_waits_for_the_save() -> None:
    low, high = saving("low", 0, 100, save_s=3), job("high", 50, 10, priority=5)
    runs = simulated([low, high])
    assert (runs["high"].first_started, runs["high"].ended) == (55, 65)
    assert (runs["low"].lost, runs["low"].saved, runs["low"].evicted) == (0, 52, 1)
    assert runs["low"].ended == 65 + 48


def test_gang_that_saves_too_slowly_is_evicted_at_the_end_of_the_wait() -> None:
    low, high = saving("low", 0, 100, save_s=300), job("high", 50, 10, priority=5)
    runs = simulated([low, high], save_wait_s=30.0)
    assert runs["high"].first_started == 80
    assert (runs["low"].lost, runs["low"].saved) == (52, 0), "it has stopped after its step"


@pytest.mark.parametrize("facts", [{"step_s": 0.0}, {"checkpoint_every": 0.0}])
def test_gang_that_cannot_save_is_evicted_immediately(facts: dict[str, float]) -> None:
    runs = simulated([saving("low", 0, 100, **facts), job("high", 50, 10, priority=5)])
    assert (runs["high"].first_started, runs["low"].lost) == (50, 50)


def test_no_gang_is_asked_without_a_wait() -> None:
    jobs = [saving("low", 0, 100), job("high", 50, 10, priority=5)]
    runs = simulated(jobs, save_wait_s=0.0)
    assert (runs["high"].first_started, runs["low"].lost) == (50, 50)


def test_gang_that_ends_during_its_last_step_is_not_stopped() -> None:
    runs = simulated([saving("low", 0, 51), job("high", 50, 10, priority=5)])
    assert (runs["low"].ended, runs["low"].evicted, runs["high"].first_started) == (51, 0, 51)


def test_withdrawn_eviction_costs_time_and_no_work() -> None:
    """The gang for which it was asked finds other nodes before the save is written."""
    jobs = [
        saving("low", 0, 100, size=1, minimum=1, save_s=20),
        job("short", 0, 60, size=1, minimum=1, priority=9),
        job("high", 50, 10, size=1, minimum=1, priority=5),
    ]
    runs = simulated(jobs)
    assert (runs["high"].first_started, runs["low"].evicted, runs["low"].lost) == (60, 0, 0)
    assert runs["low"].ended == 100 + (60 - 52)


@pytest.mark.parametrize("seed", range(3))
def test_random_traces_end_and_lose_at_most_one_step_at_an_eviction(seed: int) -> None:
    cluster = uniform_cluster(4, 64, "512Gi", 8)
    queues = (
        QueueInfo("a", deserved=request(gpu=12, pods=0)),
        QueueInfo("b", deserved=request(gpu=20, pods=0)),
    )
    jobs = []
    shape = TRACE_SHAPES["philly"]
    for number, each in enumerate(generate_trace(shape, 80, cluster, 4.0, seed, ["a", "b"])):
        facts = {name: getattr(each, name) for name in ("size", "request", "minimum", "queue")}
        jobs.append(
            job(
                each.name,
                each.arrival,
                each.duration,
                **facts,
                priority=number % 3,
                checkpoint_every=600,
                step_s=7,
                save_s=2,
            )
        )
    described = type(cluster)(cluster.nodes, queues)
    simulation = Simulation(described, jobs, watchers=[check_result])
    history = simulation.run()
    assert all(run.ended is not None for run in history.runs.values())
    assert not simulation.state.pods
    assert simulation.saves.count
    evicted = [run for run in history.runs.values() if run.evicted]
    assert evicted
    assert all(run.lost <= run.evicted * 7 for run in evicted)


def test_the_command_accepts_step_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "name,arrival,duration,size,priority,checkpoint_every,step_s,save_s\n"
        "low,0,100,2,0,60,4,3\nhigh,50,10,2,5,0,0,0\n"
    )
    assert run(["simulate", str(trace), "--nodes", "1", "--gpus", "0"]) == 0
    assert "repeated" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("column", ["step_s", "save_s"])
def test_impossible_times_are_refused(tmp_path: Path, column: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"arrival,duration,size,{column}\n0,1,1,-1\n")
    with pytest.raises(TraceError, match=f"job 1: invalid {column}"):
        read_trace(trace)
