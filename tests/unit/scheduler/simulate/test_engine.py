"""Simulation: many cycles, each checked by the oracle; no gang starves."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gangline.cli.main import run
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.simulate.engine import (
    JobRun,
    ResizeView,
    Resizing,
    Simulation,
    SimulationHistory,
    plan_save,
)
from gangline.scheduler.simulate.report import summarize
from gangline.scheduler.simulate.trace import (
    TRACE_SHAPES,
    Scaling,
    SimulatedCluster,
    TraceError,
    TraceJob,
    generate_trace,
    pod_request,
    read_cluster,
    read_trace,
    uniform_cluster,
)
from gangline.scheduler.types import CycleResult, QueueInfo
from unit.scheduler.builders import GPU, request
from unit.scheduler.oracle.check import check_result


def job(name: str, arrival: float, duration: float, size: int = 1, **facts: object) -> TraceJob:
    facts = {"request": pod_request(1, 0, 0), "minimum": size, **facts}
    return TraceJob(name, arrival, duration, size, **facts)  # type: ignore[arg-type]


def simulated(cluster: SimulatedCluster, jobs: list[TraceJob], **settings: object) -> Simulation:
    simulation = Simulation(cluster, jobs, watchers=[check_result], **settings)  # type: ignore[arg-type]
    simulation.run()
    return simulation


def test_a_quantum_decides_at_most_so_late() -> None:
    jobs = [job(f"j{index}", index, 1) for index in range(30)]
    runs = simulated(uniform_cluster(1, 64, "0", 0), jobs, quantum_s=5).history.runs
    assert max(run.waited or 0 for run in runs.values()) == 5


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


def test_time_spent_waiting_is_no_work_to_lose() -> None:
    jobs = [
        job("first", 0, 50),
        job("other", 0, 1000),
        job("waited", 1, 1000),
        job("high", 60, 1, priority=5),
    ]
    runs = simulated(uniform_cluster(2, 1, "0", 0), jobs).history.runs
    assert (runs["other"].evicted, runs["waited"].evicted) == (0, 1)


def test_cycles_without_explanations_decide_the_same() -> None:
    """Dozens of equivalent gangs wait in each queue, and gangs with reservations before them."""
    random = Random(7)
    jobs = [
        job(
            f"j{index}",
            round(random.uniform(0, 3), 1),
            random.choice([1, 2]),
            size,
            request=pod_request(size, 0, 0),
            priority=10 * size,
            queue=random.choice(["a1", "a2", "b"]),
        )
        for index in range(90)
        for size in [random.choice([1, 1, 1, 2, 3])]
    ]
    queues = (
        QueueInfo("a", capability=request(cpu=14, pods=0)),
        QueueInfo("a1", parent="a", deserved=request(cpu=4, pods=0)),
        QueueInfo("a2", parent="a", deserved=request(cpu=4, pods=0)),
        QueueInfo("b", deserved=request(cpu=8, pods=0)),
    )
    cluster = SimulatedCluster(uniform_cluster(4, 4, "0", 0).nodes, queues)

    def compare(state: SchedulerCache, result: CycleResult, now: float) -> None:
        silent = run_cycle(state, now, explain=False)
        bare = [structs.replace(r, message="", pods=()) for r in result.pending_reasons if r.group]
        assert sorted(bare, key=str) == sorted(silent.pending_reasons, key=str)
        assert replace(silent, pending_reasons=()) == replace(result, pending_reasons=())

    history = Simulation(cluster, jobs, watchers=[compare, check_result]).run()
    assert all(run.ended is not None for run in history.runs.values())
    assert history.evictions > 0


def test_traces_and_clusters_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    head = "arrival,duration,size,gpu,name,checkpoint_every,step_s,save_s\n"
    trace.write_text(f"{head}5,10,2,1,b,9,4,3\n0,1,1,,a,,,\n")
    jobs = read_trace(trace)
    read = [(each.name, each.checkpoint_every, each.step_s, each.save_s) for each in jobs]
    assert read == [("a", 0, 0, 0), ("b", 9, 4, 3)]
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
        pytest.param("arrival,duration\n1,x\n", "duration is 'x', must", id="not a number"),
        pytest.param("arrival,duration\n1,inf\n", "duration is inf, must be", id="infinite"),
        pytest.param("arrival,duration\nnan,1\n", "arrival is nan, must be", id="no number"),
        pytest.param("arrival,duration,size\n1,1,1.5\n", "size is 1.5", id="a part of a pod"),
        pytest.param("arrival,duration,size\n1,1,9999999999\n", "size is 9999", id="too many"),
        pytest.param("arrival,duration,minimum\n1,1,2\n", "minimum is 2", id="minimum"),
        pytest.param("arrival,duration,gpu,gpu\n1,1,2,3\n", "gpu twice", id="a column twice"),
        pytest.param("name,arrival,duration\na,1,2\na,1,2\n", "name a", id="a name twice"),
        pytest.param("arrival\n1\n", "no duration", id="a column is missing"),
        pytest.param("arrival,duration,speed\n1,1,1\n", "unknown speed", id="an unknown column"),
        pytest.param("arrival,duration,size\n1,1,0\n", "size is 0", id="no pods"),
        pytest.param("arrival,duration,gpu\n1,1,-1\n", "must not be negative", id="negative"),
        pytest.param(
            "arrival,duration,checkpoint_every\n1,1,-1\n", "checkpoint_every", id="checkpoints"
        ),
        *(
            pytest.param(f"arrival,duration,{name}\n0,1,-1\n", f"job 1: {name} is -1", id=name)
            for name in ("step_s", "save_s")
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: []", "no nodes"),
        ("nodes: [{count: -1}]", "count"),
        ("queues: [{weight: 2}]", "no name"),
        ("queues: [{name: a}, {name: a}]", "the name a"),
        ("queues: [{name: a, weigth: 2}]", "queue a: spec.weigth"),
        ("queues: [{name: a, dequeueStrategy: lifo}]", "queue a: spec.dequeueStrategy"),
        ("queues: [{name: a, capability: {cpu: x}}]", "queue a: spec.capability.cpu"),
        ("queues: [{name: a, parent: b}]", "queue a: there is no queue b"),
        ("queues: [{name: a, parent: b}, {name: b, parent: a}]", "queue a: it is below itself"),
    ],
)
def test_unreadable_cluster_is_an_error_that_names_what_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    described = tmp_path / "cluster.yaml"
    described.write_text(text if "nodes" in text else f"nodes: [{{cpu: 1}}]\n{text}")
    with pytest.raises(TraceError, match=message):
        read_cluster(described)


def test_traces_of_spreadsheets_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("\ufeffarrival,duration,size\n5,10,2.0\n")
    assert read_trace(trace)[0].size == 2


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
    assert "cpu in use" in printed.splitlines()[-4]
    trace.write_text("{")
    assert run(["simulate", str(trace)]) == 2


def saving(name: str, arrival: float, duration: float, **facts: object) -> TraceJob:
    facts = {"size": 2, "checkpoint_every": 60, "step_s": 4.0, **facts}
    return job(name, arrival, duration, **facts)  # type: ignore[arg-type]


HIGH = job("high", 50, 10, 2, priority=5)


def run_of_saving_jobs(jobs: list[TraceJob], **settings: object) -> dict[str, JobRun]:
    return simulated(uniform_cluster(2, 1, "0", 0), jobs, **settings).history.runs


def test_request_is_answered_after_the_present_step_and_the_write() -> None:
    plan = plan_save(10.0, 1.0, 1.0, 4.0, 2.5)
    assert (plan.stops_at, plan.answers_at) == (13.0, 15.5)
    assert plan_save(9.0, 1.0, 1.0, 4.0, 0.0).stops_at == 9.0, "at the end of a step"
    assert plan_save(10.0, 1.0, 2.0, 4.0, 0.0).stops_at == 11.0


def test_evicted_gang_loses_no_work_and_the_other_gang_waits_for_the_save() -> None:
    runs = run_of_saving_jobs([saving("low", 0, 100, save_s=3), HIGH])
    assert (runs["high"].first_started, runs["high"].ended) == (55, 65)
    assert (runs["low"].lost, runs["low"].saved, runs["low"].evicted) == (0, 52, 1)
    assert runs["low"].ended == 65 + 48


def test_gang_that_saves_too_slowly_is_evicted_at_the_end_of_the_wait() -> None:
    runs = run_of_saving_jobs([saving("low", 0, 100, save_s=300), HIGH], save_wait_s=30.0)
    assert runs["high"].first_started == 80
    assert (runs["low"].lost, runs["low"].saved) == (52, 0), "it has stopped after its step"


@pytest.mark.parametrize(
    ("facts", "settings"),
    [({"step_s": 0.0}, {}), ({"checkpoint_every": 0.0}, {}), ({}, {"save_wait_s": 0.0})],
)
def test_gang_that_cannot_save_or_is_not_waited_for_is_evicted_immediately(
    facts: dict[str, float], settings: dict[str, float]
) -> None:
    runs = run_of_saving_jobs([saving("low", 0, 100, **facts), HIGH], **settings)
    assert (runs["high"].first_started, runs["low"].lost) == (50, 50)


def test_gang_that_ends_during_its_last_step_is_not_stopped() -> None:
    runs = run_of_saving_jobs([saving("low", 0, 51), HIGH])
    assert (runs["low"].ended, runs["low"].evicted, runs["high"].first_started) == (51, 0, 51)


def test_withdrawn_eviction_costs_time_and_no_work() -> None:
    """The gang for which it was asked finds other nodes before the save is written."""
    jobs = [
        saving("low", 0, 100, size=1, save_s=20),
        job("short", 0, 60, priority=9),
        job("high", 50, 10, priority=5),
    ]
    runs = run_of_saving_jobs(jobs)
    assert (runs["high"].first_started, runs["low"].evicted, runs["low"].lost) == (60, 0, 0)
    assert runs["low"].ended == 100 + (60 - 52)


@pytest.mark.parametrize("seed", range(2))
def test_random_traces_end_and_lose_at_most_one_step_at_an_eviction(seed: int) -> None:
    cluster = uniform_cluster(4, 64, "512Gi", 8)
    queues = (
        QueueInfo("a", deserved=request(gpu=12, pods=0)),
        QueueInfo("b", deserved=request(gpu=20, pods=0)),
    )
    trace = generate_trace(TRACE_SHAPES["philly"], 60, cluster, 4.0, seed, ["a", "b"])
    jobs = [
        replace(each, priority=number % 3, checkpoint_every=600, step_s=7, save_s=2, fails_after=0)
        for number, each in enumerate(trace)
    ]
    described = SimulatedCluster(cluster.nodes, queues)
    simulation = Simulation(described, jobs, watchers=[check_result])
    history = simulation.run()
    assert all(run.ended is not None for run in history.runs.values())
    assert not simulation.state.pods
    assert simulation.saves.count
    evicted = [run for run in history.runs.values() if run.evicted]
    assert evicted
    assert all(run.lost <= run.evicted * 7 for run in evicted)
    figures = summarize(history, described)
    assert (figures.unstarted, figures.evictions) == (0, history.evictions)
    assert 0.3 < figures.utilisation[GPU] <= 1


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
    for job_run in simulate(jobs, decisions).runs.values():
        assert job_run.ended is not None
        done = job_run.saved + job_run.work(job_run.ended)
        assert done == pytest.approx(job_run.job.duration)


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


TRACE = """arrival,duration,size,cpu,priority,name
0,100,1,4,0,low
10,10,1,4,5,high
"""


@pytest.fixture
def simulate_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Simulate two jobs of which one fits at a time; return the output."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    described = tmp_path / "cluster.yaml"
    described.write_text("nodes: [{cpu: 4}]")

    def simulate(configuration: str | bytes | None, *more: str) -> tuple[int, str, str]:
        command = ["simulate", str(trace), "--cluster", str(described), *more]
        if configuration is not None:
            written = tmp_path / "scheduler.yaml"
            raw = configuration.encode() if isinstance(configuration, str) else configuration
            written.write_bytes(raw)
            command += ["--config", str(written)]
        code = run(command)
        return code, *capsys.readouterr()

    return simulate


def evicted(printed: str) -> str:
    (line,) = [line for line in printed.splitlines() if line.startswith("pods evicted")]
    return line.split()[-1]


def test_two_configurations_are_compared_on_one_trace(simulate_command) -> None:
    for text, count in (("actions: preempt", "1"), ("actions: allocate", "0"), (None, "1")):
        code, printed, errors = simulate_command(text)
        assert (code, evicted(printed), errors) == (0, count, "")


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        pytest.param("actions: shuffle", "unknown action 'shuffle'", id="an unknown action"),
        pytest.param("seed: x", "Expected `int`", id="no seed"),
        pytest.param(b"\xff", "can't decode", id="no text"),
        pytest.param("{", "expected", id="no yaml"),
    ],
)
def test_invalid_configuration_is_refused(
    simulate_command, configuration: str | bytes, message: str
) -> None:
    code, printed, errors = simulate_command(configuration)
    assert (code, printed) == (2, "")
    assert message in errors
    assert "scheduler.yaml" in errors


def test_settings_without_effect_in_a_simulation_are_reported(simulate_command) -> None:
    switches = "enableHierarchy: true, enableNamespaceOrder: true, enablePreemptable: true"
    code, _, errors = simulate_command(
        f"tiers: [{{plugins: [{{name: drf, {switches}}}, {{name: gang, arguments: {{a: 1}}}}, "
        "{name: nodeorder, arguments: {imagelocality.weight: 1}}, "
        "{name: overcommit, arguments: {overcommit-factor: 2}}]}]"
    )
    assert code == 0
    for name in (
        "a of plugin 'gang'",
        "enableHierarchy",
        "enableNamespaceOrder",
        "imagelocality",
        "overcommit",
    ):
        assert name in errors


def test_removed_options_have_no_effect_and_are_named_in_one_warning(simulate_command) -> None:
    text = "{actions: preempt, configurations: [{name: backfill, arguments: {%s: true}}]}"
    code, printed, warned = simulate_command(
        text % "backfill.learned", "--learned-run-times", "--check"
    )
    assert (code, printed) == (0, simulate_command("actions: preempt")[1])
    (line,) = warned.splitlines()
    assert "backfill.learned" in line
    assert "--learned-run-times" in line
    assert "--check" in line
    assert simulate_command(None, "--learned-run-times")[2].count("--learned-run-times") == 1
