"""No gang within the fair share of its queue starves, whatever the other queues and its own do."""

from collections.abc import Sequence
from random import Random

import pytest

from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.trace import (
    SimulatedCluster,
    TraceJob,
    pod_request,
    uniform_cluster,
)
from gangline.scheduler.types import GroupKey, NodeInfo, PodGroupInfo, PodInfo, PodKey, QueueInfo
from unit.scheduler.builders import cluster, decide, group, node, pod

LONGEST_S = 30.0
"""Run time of the longest job of the streams."""
BIG_S = 20.0
UNTIL_S = 100.0


def stream(queue: str, cpus: Sequence[int], busy: float) -> list[TraceJob]:
    """Make small jobs that keep ``busy`` CPUs in use, if these are free."""
    random, jobs, at = Random(queue), [], 0.0
    while at < UNTIL_S:
        cpu, duration = random.choice(cpus), random.choice([10.0, 20.0, LONGEST_S])
        name = f"{queue}-{len(jobs)}"
        jobs.append(TraceJob(name, at, duration, 1, pod_request(cpu, 0, 0), 1, queue))
        at += cpu * duration / busy
    return jobs


def big(queue: str, size: int, cpu: int = 4, at: float = 10.0) -> TraceJob:
    return TraceJob(f"{queue}-big", at, BIG_S, size, pod_request(cpu, 0, 0), size, queue)


def longest_wait(
    cluster: SimulatedCluster, queues: Sequence[QueueInfo], jobs: list[TraceJob]
) -> float:
    """Return how long the slowest big job waited, without evictions."""
    cluster = SimulatedCluster(cluster.nodes, tuple(queues))
    policy = EvictionPolicy(preempt=False, reclaim=False)
    runs = Simulation(cluster, jobs, policy).run(until=UNTIL_S).runs
    waited = [run.waited for run in runs.values() if run.job.name.endswith("-big")]
    return max(float("inf") if wait is None else wait for wait in waited)


FOUR = uniform_cluster(4, 4, "0", 0)
A, B = QueueInfo("a"), QueueInfo("b")


@pytest.mark.parametrize(
    ("queues", "bigs", "bound"),
    [
        pytest.param([A, B], [big("a", 2)], LONGEST_S, id="beside a second queue"),
        pytest.param([A, B], [big("a", 1), big("b", 1)], LONGEST_S, id="in both queues"),
        pytest.param(
            [A, B],
            [big("a", 2), big("b", 2)],
            2 * LONGEST_S + BIG_S,
            id="one after the other where they ask for more than half of the cluster",
        ),
        pytest.param(
            [
                QueueInfo("team"),
                QueueInfo("a", parent="team", weight=3),
                QueueInfo("c", parent="team"),
                B,
            ],
            [big("a", 1)],
            LONGEST_S,
            id="below a queue",
        ),
    ],
)
def test_gang_within_the_share_starts_when_the_gangs_have_ended_that_ran_before(
    queues: list[QueueInfo], bigs: list[TraceJob], bound: float
) -> None:
    parents = {queue.parent for queue in queues}
    jobs = [
        small
        for queue in queues
        if queue.name not in parents
        for small in stream(queue.name, [1, 1, 2], busy=12)
    ]
    assert longest_wait(FOUR, queues, jobs + bigs) <= bound


def test_gang_that_does_not_fit_beside_other_reservations_is_the_next_to_get_one() -> None:
    # A job of 4 CPU fits once on each of two nodes, so three queues cannot all start one.
    queues = [A, B, QueueInfo("c")]
    jobs = stream("a", [4], busy=8) + stream("b", [4], busy=8)
    jobs += stream("c", [1], busy=8)
    wait = longest_wait(uniform_cluster(2, 6, "0", 0), queues, [*jobs, big("c", 1)])
    assert wait <= 2 * LONGEST_S


@pytest.mark.parametrize(
    ("count", "part"),
    [pytest.param(2, 1.0, id="two queues"), pytest.param(9, 0.5, id="half of the cluster")],
)
def test_first_gangs_of_queues_beyond_the_bound_keep_their_position_without_nodes(
    monkeypatch: pytest.MonkeyPatch, count: int, part: float
) -> None:
    monkeypatch.setattr("gangline.scheduler.cycle.cycle.MAX_RESERVATIONS", count)
    monkeypatch.setattr("gangline.scheduler.cycle.cycle.MAX_RESERVED_PART", part)
    queues = [QueueInfo(name) for name in "abc"]
    things: list[NodeInfo | PodGroupInfo | PodInfo] = [node(f"n{n}", cpu=4) for n in range(3)]
    things += [
        pod(f"runs-{n}", cpu=2, on=f"n{n}", belongs_to_job=True, preemptable=False)
        for n in range(3)
    ]
    for number, queue in enumerate(queues):
        for index in range(2):
            name = f"{queue.name}{index}"
            facts = {"queue": queue.name, "age": 10 * index + number}
            things += [group(name, 1, **facts), pod(f"{name}-0", cpu=3, group=name)]
    state = cluster(*queues, *things)
    waiting = {}
    for now in (50.0, 60.0):
        state.reservations = dict(decide(state, now).reservations)
        waiting[now] = {
            name: (len(reservation.nodes), reservation.created_at)
            for name, reservation in state.reservations.items()
        }
    assert waiting[50.0] == {"d/a0": (1, 50.0), "d/b0": (1, 50.0), "d/c0": (0, 50.0)}
    assert waiting[60.0] == waiting[50.0]
    state.remove_pod(PodKey("d/a0-0"))
    state.remove_group(GroupKey("d/a0"))
    state.reservations = dict(decide(state, 70.0).reservations)
    assert {name: len(r.nodes) for name, r in state.reservations.items()} == {
        "d/b0": 1,
        "d/c0": 1,
        "d/a1": 0,
    }
