"""Elastic jobs in the simulation: a resizer changes their pods, and their speed follows."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.scheduler.simulate.cluster import uniform_cluster
from gangline.scheduler.simulate.engine import ResizeView, Resizing, Simulation, SimulationHistory
from gangline.scheduler.simulate.trace import (
    Scaling,
    TraceError,
    TraceJob,
    pod_request,
    read_trace,
)
from unit.scheduler.oracle.check import check_result

PERFECT = Scaling()


def elastic(name: str, arrival: float = 0, duration: float = 1000, **facts: object) -> TraceJob:
    facts = {
        "request": pod_request(1, 0, 0),
        "minimum": 1,
        "maximum": 8,
        "scaling": PERFECT,
    } | facts
    return TraceJob(name, arrival, duration, 2, **facts)  # type: ignore[arg-type]


def simulate(
    jobs: list[TraceJob], decisions: Mapping[float, Mapping[str, int]], pods: int = 8
) -> SimulationHistory:
    """Run with decisions at given ticks of 100 s."""
    resizing = Resizing(lambda view: decisions.get(view.now, {}), tick_s=100)
    cluster = uniform_cluster(pods, 1, "0", 0)
    simulation = Simulation(cluster, jobs, watchers=[check_result], resizing=resizing)
    return simulation.run()


def test_twice_the_pods_do_the_rest_in_half_the_time() -> None:
    run = simulate([elastic("a")], {200: {"a": 4}}).runs["a"]
    assert (run.ended, run.resized, run.restarting) == (200 + 800 / 2, 1, 0)


def test_a_change_costs_the_restart_and_no_work() -> None:
    run = simulate([elastic("a", restart_s=60)], {200: {"a": 4}}).runs["a"]
    assert (run.ended, run.restarting, run.lost) == (200 + 60 + 800 / 2, 60, 0)


def test_a_second_change_during_a_restart_begins_it_again() -> None:
    run = simulate([elastic("a", restart_s=150)], {200: {"a": 4}, 300: {"a": 2}}).runs["a"]
    assert run.ended == 300 + 150 + 800
    assert run.restarting == 250


def test_pods_that_find_no_node_add_no_speed_until_they_do() -> None:
    jobs = [elastic("a"), elastic("b", duration=500)]
    runs = simulate(jobs, {200: {"a": 8}}, pods=4).runs
    # "a" gets the two pods of "b" when it ends: no tick is needed for it.
    assert runs["b"].ended == 500
    assert runs["a"].ended == 500 + 500 / 2


def test_a_job_that_shrinks_gives_its_pods_to_one_that_waits() -> None:
    jobs = [elastic("a"), elastic("b", arrival=50, minimum=2)]
    runs = simulate(jobs, {100: {"a": 1}, 200: {"a": 8}}, pods=3).runs
    assert runs["b"].first_started == 100
    assert runs["a"].ended is not None


@pytest.mark.parametrize(("wish", "pods"), [(100, 8), (0, 1), (-3, 1)])
def test_wishes_are_clipped_to_the_bounds_of_the_job(wish: int, pods: int) -> None:
    run = simulate([elastic("a")], {100: {"a": wish}}).runs["a"]
    assert run.pods == pods


def test_jobs_without_scaling_and_unknown_names_are_left_alone() -> None:
    runs = simulate([elastic("a", scaling=None)], {100: {"a": 8, "nobody": 3}}).runs
    assert (runs["a"].ended, runs["a"].pods) == (1000, 2)


def test_the_view_has_free_amounts_and_waiting_jobs() -> None:
    seen: list[ResizeView] = []

    def look(view: ResizeView) -> Mapping[str, int]:
        seen.append(view)
        return {}

    jobs = [elastic("a"), elastic("b", minimum=2), elastic("c", arrival=10, minimum=2)]
    cluster = uniform_cluster(5, 1, "0", 0)
    Simulation(cluster, jobs, resizing=Resizing(look, 100)).run()
    assert [run.job.name for run in seen[0].running] == ["a", "b"]
    assert [run.job.name for run in seen[0].waiting] == ["c"]
    assert sum(amounts.get("cpu", 0) > 0 for amounts in seen[0].free.values()) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), max_size=8),
    st.floats(0, 0.3), st.floats(0, 90),
)  # fmt: skip
def test_any_decisions_end_all_jobs_after_exactly_their_work(
    wishes: list[dict[str, int]], r1: float, restart_s: float
) -> None:
    scaling = Scaling(r1=r1)
    jobs = [elastic(name, restart_s=restart_s, scaling=scaling) for name in "abc"]
    decisions = {100.0 * (number + 1): wish for number, wish in enumerate(wishes)}
    for run in simulate(jobs, decisions).runs.values():
        assert run.ended is not None
        done = run.saved + run.work(run.ended)
        assert done == pytest.approx(run.job.duration)


def test_scaling_has_a_best_size_and_noise_allows_larger_batches() -> None:
    costly = Scaling(r0=0.02, x1=0.02)
    values = [costly.goodput(pods, 1) for pods in range(1, 17)]
    assert 0 < values.index(max(values)) < 15
    noisy = Scaling(r0=0.02, x1=0.02, noise=10)
    assert noisy.goodput(16, 1) > costly.goodput(16, 1)
    assert noisy.goodput(16, 1) < 16 * noisy.goodput(1, 1)


def test_columns_of_elastic_jobs_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    head = "arrival,duration,size,minimum,max,r1,noise,restart_s\n"
    file.write_text(head + "0,10,2,1,8,0.05,3,60\n")
    (found,) = read_trace(file)
    assert (found.maximum, found.scaling, found.restart_s) == (8, Scaling(r1=0.05, noise=3), 60)
    for row in ("0,10,2,1,1,,,", "0,10,2,1,8,-1,,", "0,10,2,1,8,0.1,nan,", "0,10,2,1,8,,,-5"):
        file.write_text(head + row + "\n")
        with pytest.raises(TraceError, match="job 1"):
            read_trace(file)
