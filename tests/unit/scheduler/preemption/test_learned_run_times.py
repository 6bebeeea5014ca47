"""Learned run times let gangs into planned room, and put nobody off when they are wrong."""

from random import Random

import msgspec
import pytest

from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info, pod_info
from gangline.scheduler.cache.usage import FEWEST, MARGIN, REMEMBERED, RunTimes, family_of
from gangline.scheduler.cycle.cycle import run_cycle as decide_with
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.simulate.cluster import uniform_cluster
from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.trace import TraceJob, pod_request
from gangline.scheduler.types.types import CycleResult, DisruptionBudgetInfo, GroupKey, PodKey
from gangline.scheduler.types.wire import LeanPod, slim_pod
from unit.scheduler.builders import cluster, gang, group, node, pod
from unit.scheduler.oracle.check import check_result, violations

NOW = 1000.0
LODGING = EvictionPolicy(learned_backfill=True)


def decide(state: SchedulerCache, now: float) -> CycleResult:
    return decide_with(state, now, LODGING)


def learned(seconds: float, runs: int = FEWEST) -> RunTimes:
    times = RunTimes()
    for index in range(runs):
        times.ended("f", f"run-{index}", seconds)
    return times


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("bert", "bert"),
        ("bert-17", "bert"),
        ("bert-large-2026-11-21", "bert-large"),
        ("bert-x7k2p", "bert"),
        ("v100-tuning", "v100-tuning"),
        ("7", "7"),
        ("-7", "-7"),
    ],
)
def test_gangs_whose_names_differ_in_numbers_are_of_one_family(name: str, stem: str) -> None:
    assert family_of("d", name, "q") == f"d/{stem}/q"


def test_nothing_is_concluded_from_few_runs() -> None:
    assert learned(60, FEWEST - 1).estimate("f") == 0
    assert learned(60).estimate("f") == 60 * MARGIN
    assert learned(60).estimate("another") == 0


def test_one_run_in_a_hundred_may_take_longer_than_the_estimate_but_not_one_in_ten() -> None:
    times = learned(60, REMEMBERED)
    times.ended("f", "odd", 9000)
    assert times.estimate("f") == 60 * MARGIN
    for index in range(6):
        times.ended("f", f"slow-{index}", 500)
    assert times.estimate("f") == 500 * MARGIN


def test_runs_that_were_cut_off_only_make_an_estimate_longer() -> None:
    times = learned(60)
    times.ended("f", "failed-soon", 1, whole=False)
    assert times.estimate("f") == 60 * MARGIN
    times.ended("f", "failed-late", 80, whole=False)
    assert times.estimate("f") == 80 * MARGIN


def test_of_a_gangs_pods_the_longest_counts() -> None:
    times = learned(60, FEWEST - 1)
    for seconds in (10, 90, 20):
        times.ended("f", "last", seconds)
    assert times.estimate("f") == 90 * MARGIN


def finished(name: str, ran: str, phase: str = "Succeeded") -> LeanPod:
    terminated = {"state": {"terminated": {"finishedAt": f"1970-01-01T00:{ran}Z"}}}
    raw = {
        "metadata": {
            "name": name,
            "namespace": "d",
            "annotations": {"scheduling.k8s.io/group-name": name},
        },
        "spec": {"nodeName": "n"},
        "status": {
            "phase": phase,
            "startTime": "1970-01-01T00:10:00Z",
            "containerStatuses": [terminated, {"state": {"running": {}}}],
        },
    }
    return slim_pod(msgspec.convert(raw, LeanPod))


@pytest.mark.parametrize("groups_first", [True, False])
def test_run_times_are_learned_from_pods_that_have_ended(groups_first: bool) -> None:
    state = cluster()
    groups = [
        group_info(
            msgspec.convert({"metadata": {"name": f"bert-{i}", "namespace": "d"}}, PodGroup), {}
        )
        for i in range(FEWEST)
    ]
    pods = [pod_info(finished(f"bert-{i}", "11:00"), {}, frozenset()) for i in range(FEWEST)]
    for each in (*groups, *pods) if groups_first else (*pods, *groups):
        state.set_group(each) if each in groups else state.set_pod(each)  # type: ignore[arg-type]
    assert state.run_times.estimate(groups[0].family) == 60 * MARGIN


def test_a_family_can_be_named() -> None:
    def family(name: str, **annotations: str) -> str:
        noted = {
            f"gangline.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
        }
        raw = {"metadata": {"name": name, "namespace": "d", "annotations": noted}}
        return group_info(msgspec.convert(raw, PodGroup), {}).family

    assert family("a", run_time_family="x") == family("b", run_time_family="x")
    assert family("a", run_time_family="x") != family("a", run_time_family="y")
    assert family("a") != family("b")
    assert family("a-1") == family("a-2")


def crowded(**facts: object) -> SchedulerCache:
    """A node that is free in 100 seconds at the latest, one who waits for all of it, and one whose
    like take 75 seconds."""
    state = cluster(
        node("n", cpu=4),
        group("old", 1),
        pod("old-0", cpu=3, group="old", on="n", started_at=NOW - 50, max_run_time_s=150),
        *gang("large", 1, cpu=4),
        group("short", 1, age=9, family="f", **facts),
        pod("short-0", cpu=1, group="short", age=9),
    )
    state.run_times = learned(60)
    return state


def lodged(state: SchedulerCache, decision: CycleResult) -> SchedulerCache:
    """Carry a decision out."""
    state.reservations = dict(decision.reservations)
    state.backfilled.update(decision.backfilled)
    for binding in decision.bindings:
        known = state.pods[binding.pod]
        state.set_pod(
            msgspec.structs.replace(known, node=binding.node, phase="Running", started_at=NOW)
        )
    return state


def test_a_gang_whose_like_end_in_time_lodges_in_planned_room() -> None:
    decision = decide(state := crowded(), NOW)
    assert [binding.pod for binding in decision.bindings] == ["d/short-0"]
    assert decision.backfilled == {"d/short": "d/large"}
    assert not list(violations(state, decision))


def test_nobody_lodges_unless_that_is_asked_for() -> None:
    assert not decide_with(crowded(), NOW).bindings


def test_who_lodges_stays_when_it_is_no_more_asked_for() -> None:
    state = lodged(state := crowded(), decide(state, NOW))
    state.remove_pod(PodKey("d/old-0"))
    assert not decide_with(state, NOW + 90).evictions


def test_a_gang_whose_like_take_longer_does_not() -> None:
    state = crowded()
    state.run_times = learned(90)
    assert not decide(state, NOW).bindings


@pytest.mark.parametrize("protected", ["group", "budget", "policy", "lodged before"])
def test_who_could_not_be_told_to_go_does_not_lodge(protected: str) -> None:
    state = crowded(preemptable=protected != "group")
    if protected == "budget":
        from gangline.api.meta.selectors import EVERYTHING  # noqa: PLC0415

        state.budgets["d/all"] = DisruptionBudgetInfo("d/all", "d", EVERYTHING, allowed=9)
    if protected == "lodged before":
        state.backfilled[GroupKey("d/short")] = "d/another"
    assert not decide_with(
        state, NOW, EvictionPolicy(preempt=protected != "policy", learned_backfill=True)
    ).bindings


def test_a_lodger_stays_while_the_first_in_line_could_not_start_anyway() -> None:
    state = lodged(state := crowded(), decide(state, NOW))
    assert not decide(state, NOW + 500).evictions


def test_a_lodger_goes_once_the_first_in_line_could_start_without_him() -> None:
    state = lodged(state := crowded(), decide(state, NOW))
    state.remove_pod(PodKey("d/old-0"))
    decision = decide(state, NOW + 90)
    assert [eviction.pod for eviction in decision.evictions] == ["d/short-0"]
    assert "as long as its like take" in decision.evictions[0].reason
    assert decision.reservations["d/large"].preempting
    assert not list(violations(state, decision))


def test_nobody_else_may_have_a_lodger_evicted() -> None:
    state = lodged(state := crowded(), decide(state, NOW))
    state.remove_pod(PodKey("d/old-0"))
    state.remove_group(GroupKey("d/large"))
    state.remove_pod(PodKey("d/large-worker-0"))
    for each in gang("other", 1, cpu=4):
        state.set_pod(each) if each.key != "d/other" else state.set_group(each)  # type: ignore[arg-type]
    assert not decide(state, NOW + 90).evictions


def test_who_lodges_is_known_from_the_group_after_a_restart() -> None:
    state = cluster(group("short", 1, backfills_for="d/large"))
    assert state.backfilled == {"d/short": "d/large"}


@pytest.mark.parametrize("seed", range(3))
def test_a_large_gang_starts_when_what_ran_has_drained_even_if_all_estimates_are_wrong(
    seed: int,
) -> None:
    """Jobs of a family are short until the large gang is first in line; then they take for ever."""
    random = Random(seed)
    simulation: Simulation
    drained: list[float] = []
    lodgers: set[str] = set()

    def watch(state: SchedulerCache, decision: CycleResult, now: float) -> None:
        lodgers.update(decision.backfilled)
        if drained or "sim/large" not in decision.reservations:
            return
        runs = simulation.history.runs
        names = {str(p.group).removeprefix("sim/") for p in state.pods.values() if p.node}
        names |= {str(b.group).removeprefix("sim/") for b in decision.bindings} - {
            key.removeprefix("sim/") for key in decision.backfilled
        }
        began = {name: runs[name].started for name in names}
        drained.append(max((began[n] or now) + runs[n].job.duration for n in names))

    def small(index: int) -> TraceJob:
        arrival = 3.0 * index
        if index % 2:
            return TraceJob(
                f"m-{index}", arrival, random.uniform(60, 90), 2, pod_request(1, 0, 0), 2
            )
        duration = random.uniform(5, 10) if arrival < 190 else 5000.0
        return TraceJob(f"s-{index}", arrival, duration, 1, pod_request(1, 0, 0), 1)

    large = TraceJob("large", 189, 10, 6, pod_request(4, 0, 0), 6)
    jobs = [small(index) for index in range(90)]
    cluster = uniform_cluster(6, 4, "0", 0)
    simulation = Simulation(cluster, [*jobs, large], LODGING, watchers=[check_result, watch])
    history = simulation.run()
    started = history.runs["large"].first_started
    assert started is not None
    assert started <= drained[0]
    assert lodgers
    assert history.evictions
