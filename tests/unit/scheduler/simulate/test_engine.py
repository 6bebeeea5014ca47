"""Simulation: many cycles, each checked by the oracle; no gang starves."""

from pathlib import Path
from random import Random

import pytest

from gangline.cli.main import run
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.simulate.cluster import SimulatedCluster, read_cluster, uniform_cluster
from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.generate import TRACE_SHAPES, generate_trace
from gangline.scheduler.simulate.report import summarize
from gangline.scheduler.simulate.trace import TraceError, TraceJob, pod_request, read_trace
from gangline.scheduler.types.types import CycleResult, QueueInfo
from unit.scheduler.builders import GPU, request
from unit.scheduler.oracle.check import check_result


def job(name: str, arrival: float, duration: float, size: int = 1, **facts: object) -> TraceJob:
    facts = {"request": pod_request(1, 0, 0), "minimum": size, **facts}
    return TraceJob(name, arrival, duration, size, **facts)  # type: ignore[arg-type]


def simulated(cluster: SimulatedCluster, jobs: list[TraceJob], **settings: object) -> Simulation:
    simulation = Simulation(cluster, jobs, watchers=[check_result], **settings)  # type: ignore[arg-type]
    simulation.run()
    return simulation


def test_time_passes_from_event_to_event() -> None:
    runs = simulated(uniform_cluster(1, 1, "0", 0), [job("a", 0, 10), job("b", 1, 5)]).history.runs
    assert (runs["a"].first_started, runs["a"].ended) == (0, 10)
    assert (runs["b"].first_started, runs["b"].ended) == (10, 15)


def test_a_quantum_decides_at_most_so_late() -> None:
    jobs = [job(f"j{index}", index, 1) for index in range(30)]
    runs = simulated(uniform_cluster(1, 64, "0", 0), jobs, quantum_s=5).history.runs
    assert max(run.waited or 0 for run in runs.values()) == 5


def test_failed_gang_restarts() -> None:
    runs = simulated(uniform_cluster(1, 1, "0", 0), [job("a", 0, 10, fails_after=4)]).history.runs
    assert runs["a"].ended == 14


def test_an_evicted_gang_comes_back_and_does_its_work_again() -> None:
    jobs = [job("low", 0, 10, size=2), job("high", 4, 3, size=2, priority=5)]
    simulation = simulated(uniform_cluster(2, 1, "0", 0), jobs)
    runs = simulation.history.runs
    assert (runs["high"].first_started, runs["high"].ended) == (4, 7)
    assert (runs["low"].ended, runs["low"].evicted) == (17, 1)
    assert simulation.history.evictions == 2


def test_evicted_pods_take_one_to_four_cycles_to_end() -> None:
    ending: list[int] = []

    def watch(state: SchedulerCache, decision: CycleResult, now: float) -> None:
        check_result(state, decision, now)
        ending.append(sum(pod.is_terminating for pod in state.pods.values()))

    jobs = [job("low", 0, 10, size=4), job("high", 4, 3, size=4, priority=5)]
    simulation = Simulation(uniform_cluster(4, 1, "0", 0), jobs, watchers=[watch])
    simulation.run()
    assert [count for count in ending if count] == [4, 3, 2, 1]
    runs = simulation.history.runs
    assert (runs["high"].ended, runs["low"].ended, runs["low"].evicted) == (7, 17, 1)


def test_evicted_and_failed_gangs_go_on_from_their_last_checkpoint() -> None:
    jobs = [
        job("low", 0, 10, size=2, checkpoint_every=3),
        job("high", 4, 3, size=2, priority=5),
        job("failing", 100, 10, fails_after=7, checkpoint_every=2),
    ]
    cluster = uniform_cluster(2, 1, "0", 0)
    history = simulated(cluster, jobs).history
    low, failing = history.runs["low"], history.runs["failing"]
    assert (low.ended, low.lost) == (14, 1)
    assert (failing.ended, failing.lost) == (111, 1)
    assert summarize(history, cluster).redone == 2 * 1 + 1


def test_gang_with_a_recent_checkpoint_is_evicted_before_a_younger_gang() -> None:
    jobs = [
        job("saving", 0, 100, checkpoint_every=9),
        job("later", 5, 100),
        job("high", 10, 1, priority=5),
    ]
    runs = simulated(uniform_cluster(2, 1, "0", 0), jobs).history.runs
    assert (runs["saving"].evicted, runs["later"].evicted) == (1, 0)
    assert runs["saving"].ended == 102


def test_time_spent_waiting_is_no_work_to_lose() -> None:
    jobs = [
        job("first", 0, 50),
        job("other", 0, 1000),
        job("waited", 1, 1000),
        job("high", 60, 1, priority=5),
    ]
    runs = simulated(uniform_cluster(2, 1, "0", 0), jobs).history.runs
    assert (runs["other"].evicted, runs["waited"].evicted) == (0, 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_large_gang_starts_when_what_ran_before_has_drained(seed: int) -> None:
    """Whatever small jobs keep coming: the bound is the end of what ran when it became first."""
    random = Random(seed)
    small = [
        job(f"s{index}", random.uniform(0, 260), random.uniform(5, 60), random.choice([1, 1, 2, 3]))
        for index in range(160)
    ]
    large = job("large", 100, 10, size=6, request=pod_request(4, 0, 0))
    drained_by = 0.0

    def note_what_runs(state: SchedulerCache, decision: CycleResult, now: float) -> None:
        nonlocal drained_by
        if drained_by or "sim/large" not in decision.reservations:
            return
        names = {str(p.group).removeprefix("sim/") for p in state.pods.values() if p.node}
        names |= {str(b.group).removeprefix("sim/") for b in decision.bindings}
        runs = simulation.history.runs
        drained_by = max(
            (now if (began := runs[name].started) is None else began) + runs[name].job.duration
            for name in names
        )

    cluster = uniform_cluster(8, 4, "0", 0)
    simulation = Simulation(cluster, [*small, large], watchers=[check_result, note_what_runs])
    started = simulation.run().runs["large"].first_started
    assert drained_by
    assert started is not None
    assert started <= drained_by


def test_a_trace_played_twice_gives_the_same_decisions() -> None:
    random = Random(7)
    jobs = [
        job(
            f"j{index}",
            random.uniform(0, 100),
            random.expovariate(1 / 20),
            random.choice([1, 2, 4]),
            priority=random.choice([0, 0, 5]),
            queue=random.choice(["default", "team"]),
        )
        for index in range(60)
    ]
    played = []
    for _ in range(2):
        seen: list[CycleResult] = []
        cluster = SimulatedCluster(
            uniform_cluster(6, 3, "0", 0).nodes, (QueueInfo("team", weight=2),)
        )
        record = [lambda _state, decision, _now, seen=seen: seen.append(decision), check_result]
        Simulation(cluster, jobs, watchers=record).run()
        played.append(seen)
    assert played[0] == played[1]


def test_queues_and_evictions_pass_the_judge() -> None:
    random = Random(3)
    queues = (
        QueueInfo("a", weight=1, capability=request(cpu=9, pods=0)),
        QueueInfo("b", weight=3),
        QueueInfo("b1", parent="b"),
        QueueInfo("b2", parent="b", capability=request(cpu=6, pods=0)),
    )
    jobs = [
        job(
            f"j{index}",
            random.uniform(0, 80),
            random.expovariate(1 / 30),
            size := random.choice([1, 2, 4, 8]),
            minimum=random.choice([size, max(1, size // 2)]),
            priority=random.choice([0, 0, 0, 5]),
            queue=random.choice(["a", "b1", "b2", "default"]),
            fails_after=random.choice([0, 0, 0, 10]),
        )
        for index in range(70)
    ]
    cluster = SimulatedCluster(uniform_cluster(6, 3, "0", 0).nodes, queues)
    simulation = simulated(cluster, jobs)
    figures = summarize(simulation.history, cluster)
    assert figures.unstarted == sum(j.queue == "b2" and j.minimum > 6 for j in jobs)
    assert 0.5 < figures.utilisation["cpu"] <= 1
    assert figures.evictions


def test_traces_and_clusters_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,duration,size,gpu,name,checkpoint_every\n5,10,2,1,b,9\n0,1,1,,a,\n")
    jobs = read_trace(trace)
    assert [(each.name, each.checkpoint_every) for each in jobs] == [("a", 0), ("b", 9)]
    assert dict(jobs[1].request) == {"cpu": 1000, "nvidia.com/gpu": 1, "pods": 1}
    described = tmp_path / "cluster.yaml"
    described.write_text(
        "nodes: [{count: 2, cpu: 4, memory: 8Gi}]\nqueues: [{name: q, deserved: {cpu: 2}}]\n"
    )
    cluster = read_cluster(described)
    assert [node.name for node in cluster.nodes] == ["node-0", "node-1"]
    assert dict(cluster.queues[0].deserved) == {"cpu": 2000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("arrival,duration\n1,x\n", "could not convert", id="not a number"),
        pytest.param("arrival\n1\n", "no duration", id="a column is missing"),
        pytest.param("arrival,duration,speed\n1,1,1\n", "unknown speed", id="an unknown column"),
        pytest.param("arrival,duration,size\n1,1,0\n", "invalid", id="no pods"),
        pytest.param("arrival,duration,gpu\n1,1,-1\n", "must not be negative", id="negative"),
        pytest.param(
            "arrival,duration,checkpoint_every\n1,1,-1\n", "checkpoint_every", id="checkpoints"
        ),
    ],
)
def test_unreadable_trace_is_an_error_with_its_position(
    tmp_path: Path, text: str, message: str
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(trace)


def test_generated_jobs_have_the_shape_asked_for_and_are_the_same_again() -> None:
    cluster = uniform_cluster(10, 64, "512Gi", 8)
    jobs = generate_trace(TRACE_SHAPES["philly"], 2000, cluster, load=0.8, seed=3)
    assert jobs == generate_trace(TRACE_SHAPES["philly"], 2000, cluster, load=0.8, seed=3)
    single = sum(each.size == 1 and dict(each.request)[GPU] == 1 for each in jobs)
    assert 0.75 < single / len(jobs) < 0.85
    durations = sorted(each.duration for each in jobs)
    assert sum(durations[-200:]) > 0.5 * sum(durations)


def test_a_simulation_is_printed_as_tables_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('[{"arrival": 0, "duration": 9}, {"arrival": 1, "duration": 5, "cpu": 16}]')
    assert run(["simulate", str(trace), "--nodes", "1", "--gpus", "0"]) == 0
    printed = capsys.readouterr().out
    assert "jobs that never started" in printed
    assert "cpu in use" in printed.splitlines()[-2]
    trace.write_text("{")
    assert run(["simulate", str(trace)]) == 2
