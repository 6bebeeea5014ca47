"""Sizes of all elastic jobs of a cluster, by several policies, in the scheduler's simulation.

    python -m benchmarks.brain.cluster [--gpus 64] [--jobs 300] [--seeds 3] [--loads 0.6 0.8 1.0]

Half of the jobs are elastic, from half to four times of their size. Their scaling curves are
hidden from the Brain, which sees curves with errors and no remaining times; the oracle is the same
allocation with true curves and true remaining times. The policies of the papers know the true
curves: ``pollux`` and ``sia`` are their objectives, divided exactly in place of their own search.
Every policy gives pods back for the first job that waits, with the Brain's ``give_back``.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from gangline.api.resource_list import GPU
from gangline.brain.allocation.allocate import allocate
from gangline.brain.allocation.give_back import give_back
from gangline.brain.allocation.jobs import (
    AllocationJob,
    AllocationNode,
    SizePoint,
    WaitingGang,
)
from gangline.brain.allocation.solve import Option, divide
from gangline.scheduler.simulate.cluster import SimulatedCluster, uniform_cluster
from gangline.scheduler.simulate.engine import JobRun, ResizeView, Resizing, Simulation
from gangline.scheduler.simulate.generate import TRACE_SHAPES, generate_trace
from gangline.scheduler.simulate.trace import Scaling, TraceJob, pod_request

FAMILIES = {
    "compute-bound CNN": Scaling(r0=0.001, r1=0.001, noise=6),
    "BERT": Scaling(r0=0.004, r1=0.004, x1=0.0005, noise=8),
    "7B with FSDP": Scaling(r0=0.01, r1=0.01, x1=0.002, noise=16),
    "recommendation": Scaling(r0=0.03, r1=0.02, x1=0.004),
    "RNN that scales badly": Scaling(r0=0.08, r1=0.08, x1=0.01),
}
"""Curves from well to badly scaling, as data: the first three allow larger batches."""
LONGEST_S = 12 * 3600.0
COOL_DOWN_S = 300.0
CURVE_ERROR = 0.05
"""Standard deviation of the logarithm of each goodput that the Brain sees."""
MOST_PODS = 32
TICK_S = 60.0
Policy = Callable[["Knowledge", ResizeView], Mapping[str, int]]


class Knowledge:
    """What the policies know beside the view: curves, changes, and the size of the cluster."""

    def __init__(self, gpus: int, seed: int) -> None:
        self.gpus = gpus
        self._random = Random(seed)
        self._seen: dict[tuple[str, int], float] = {}
        self._changed_at: dict[str, float] = {}
        self._changes: dict[str, int] = {}

    def note(self, view: ResizeView, sizes: Mapping[str, int]) -> None:
        """Remember which jobs change their size."""
        for run in view.running:
            name = run.job.name
            if sizes.get(name, run.pods) != run.pods:
                self._changed_at[name] = view.now
                self._changes[name] = self._changes.get(name, 0) + 1

    def error(self, name: str, pods: int) -> float:
        """Factor by which the goodput that the Brain sees is wrong; always the same for a size."""
        drawn = self._random.lognormvariate(0, CURVE_ERROR)
        return self._seen.setdefault((name, pods), drawn)

    def cools_down(self, name: str, now: float) -> bool:
        return now - self._changed_at.get(name, -math.inf) < COOL_DOWN_S

    def factor(self, run: JobRun, now: float) -> float:
        """Pollux's and Sia's factor for a change: (age - restarts x cost) / (age + cost)."""
        age, cost = now - (run.first_started or now), max(run.job.restart_s, 1.0)
        return max((age - self._changes.get(run.job.name, 0) * cost) / (age + cost), 0.01)


def described(knowledge: Knowledge, run: JobRun, now: float, *, exact: bool) -> AllocationJob:
    """Describe a job to the Brain's allocation."""
    job = run.job
    sizes = range(job.minimum, max(job.maximum, job.size) + 1)
    curve = tuple(
        SizePoint(
            devices=pods,
            goodput=job.rate(pods) * (1.0 if exact else knowledge.error(job.name, pods)),
        )
        for pods in sizes
    )
    age = now - (run.first_started or now)
    left = (job.duration - run.saved - run.work(now)) / run.rate
    return AllocationJob(
        key=job.name,
        devices=run.pods,
        unit=1,
        minimum=job.minimum,
        maximum=max(job.maximum, job.size),
        curve=curve,
        rest_s=max(left if exact else age, 1.0),
        cost_s=job.restart_s,
        fixed=knowledge.cools_down(job.name, now),
    )


def free_nodes(view: ResizeView) -> list[AllocationNode]:
    return [
        AllocationNode(name=name, free=max(amounts.get(GPU, 0), 0))
        for name, amounts in view.free.items()
    ]


def with_give_back(choose: Policy, *, exact: bool) -> Policy:
    """Let a policy grow jobs only if no job waits; else shrink jobs for the first that waits."""

    def decide(knowledge: Knowledge, view: ResizeView) -> Mapping[str, int]:
        if not view.waiting:
            sizes = choose(knowledge, view)
        else:
            jobs = [described(knowledge, run, view.now, exact=exact) for run in view.running]
            first = view.waiting[0].job
            gang = WaitingGang(
                key=first.name, pods=first.minimum, unit=dict(first.request).get(GPU, 1)
            )
            sizes = give_back(jobs, free_nodes(view), gang) or {}
        knowledge.note(view, sizes)
        return sizes

    return decide


def brain(*, exact: bool) -> Policy:
    """The Brain's allocation; with ``exact`` the oracle."""

    def choose(knowledge: Knowledge, view: ResizeView) -> Mapping[str, int]:
        jobs = [described(knowledge, run, view.now, exact=exact) for run in view.running]
        found = allocate(jobs, free_nodes(view), {"": float(knowledge.gpus)})
        return {name: each.devices for name, each in found.jobs.items() if each.changed}

    return choose


def divided(power: float, *, powers_of_two: bool) -> Policy:
    """Least sum of S to the given power, S relative to the size of the job, changes discounted."""

    def choose(knowledge: Knowledge, view: ResizeView) -> Mapping[str, int]:
        options = {}
        for run in view.running:
            job, factor = run.job, knowledge.factor(run, view.now)
            sizes = set(range(job.minimum, max(job.maximum, job.size) + 1))
            if powers_of_two:
                sizes = {pods for pods in sizes if pods & (pods - 1) == 0}
            options[job.name] = [
                Option(pods, (job.rate(pods) * (1.0 if pods == run.pods else factor)) ** power)
                for pods in sorted(sizes | {run.pods})
            ]
        free = sum(node.free for node in free_nodes(view))
        division = divide(options, sum(run.pods for run in view.running) + free)
        if division is None:
            return {}
        return {name: options[name][index].devices for name, index in division.chosen.items()}

    return choose


def optimus(knowledge: Knowledge, view: ResizeView) -> Mapping[str, int]:
    """Device by device to the job whose remaining time falls most; changes cost nothing."""
    del knowledge
    sizes = {run.job.name: run.job.minimum for run in view.running}
    left = sum(node.free for node in free_nodes(view))
    left += sum(run.pods - run.job.minimum for run in view.running)

    def gain(run: JobRun) -> float:
        job, pods = run.job, sizes[run.job.name]
        if pods >= max(job.maximum, job.size):
            return 0.0
        rest = job.duration - run.saved - run.work(view.now)
        return rest / job.rate(pods) - rest / job.rate(pods + 1)

    for _ in range(left):
        best = max(view.running, key=gain, default=None)
        if best is None or gain(best) <= 0:
            break
        sizes[best.job.name] += 1
    return sizes


POLICIES: Mapping[str, Policy | None] = {
    "static": None,
    "optimus": with_give_back(optimus, exact=True),
    "pollux": with_give_back(divided(-1.0, powers_of_two=False), exact=True),
    "sia": with_give_back(divided(-0.5, powers_of_two=True), exact=True),
    "brain": with_give_back(brain(exact=False), exact=False),
    "oracle": with_give_back(brain(exact=True), exact=True),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measures of one simulation."""

    mean_jct: float
    p99_jct: float
    inelastic_jct: float
    used: float
    """Share of the GPUs in use until the last arrival."""
    useful: float
    """The same, in work on the job's own size."""
    changes: float
    """Changes of size for each elastic job."""


def make_jobs(
    shape: str, count: int, cluster: SimulatedCluster, load: float, seed: int, restart_s: float
) -> list[TraceJob]:
    """Generate a trace with one GPU in each pod; half of its jobs are elastic."""
    random = Random(seed)
    gpus = len(cluster.nodes) * 8
    drawn = generate_trace(TRACE_SHAPES[shape], count, cluster, load, seed)
    jobs = []
    for job in drawn:
        pods = min(job.size * dict(job.request).get(GPU, 1), gpus // 2)
        scaling = random.choice(list(FAMILIES.values()))
        is_elastic = random.random() < 0.5
        jobs.append(
            replace(
                job,
                duration=min(job.duration, LONGEST_S),
                size=pods,
                minimum=max(pods // 2, 1) if is_elastic else pods,
                maximum=max(min(4 * pods, MOST_PODS), pods) if is_elastic else pods,
                request=pod_request(4, "16Gi", 1),
                scaling=scaling if is_elastic else None,
                restart_s=restart_s,
                fails_after=0.0,
            )
        )
    # Long jobs were cut: arrivals are compressed until the load is right again.
    work = sum(job.duration * job.size for job in jobs)
    span = max(job.arrival for job in jobs) or 1.0
    factor = work / (gpus * load) / span
    return [replace(job, arrival=job.arrival * factor) for job in jobs]


def simulate(
    jobs: Sequence[TraceJob], cluster: SimulatedCluster, policy: Policy | None, seed: int
) -> Outcome:
    """Run one trace under one policy."""
    gpus = len(cluster.nodes) * 8
    knowledge = Knowledge(gpus, seed)
    resizing = Resizing(lambda view: policy(knowledge, view), TICK_S) if policy else None
    history = Simulation(cluster, jobs, resizing=resizing).run()
    runs = list(history.runs.values())
    times = sorted((run.ended or math.inf) - run.job.arrival for run in runs)
    rigid = [(r.ended or math.inf) - r.job.arrival for r in runs if not r.job.is_elastic]
    last = max(job.arrival for job in jobs)
    busy = sum(
        sample.running.get(GPU, 0) * (min(after.at, last) - min(sample.at, last))
        for sample, after in pairwise(history.samples)
    )
    done = sum(r.job.duration * r.job.size for r in runs if r.ended and r.ended <= last)
    elastic = [run for run in runs if run.job.is_elastic]
    return Outcome(
        statistics.fmean(times),
        times[min(int(0.99 * len(times)), len(times) - 1)],
        statistics.fmean(rigid),
        busy / (gpus * last),
        done / (gpus * last),
        sum(run.resized for run in elastic) / max(len(elastic), 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--restart", type=float, default=60.0)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    parser.add_argument("--shapes", nargs="+", default=list(TRACE_SHAPES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    given = parser.parse_args() if __name__ == "__main__" else parser.parse_args([])
    cluster = uniform_cluster(given.gpus // 8, 96, "1Ti", 8)
    print(f"{given.gpus} GPUs, {given.jobs} jobs, {given.seeds} seeds, restart {given.restart:g} s")
    print(
        f"{'shape':8}{'load':>5}  {'policy':8}  mean JCT  ratio  p99 ratio  rigid  used useful chg"
    )
    for shape in given.shapes:
        for load in given.loads:
            base: list[Outcome] = []
            for name in given.policies:
                found = [
                    simulate(
                        make_jobs(shape, given.jobs, cluster, load, seed, given.restart),
                        cluster, POLICIES[name], seed,
                    )
                    for seed in range(given.seeds)
                ]  # fmt: skip
                base = base or found
                print(f"{shape:8}{load:5.1f}  {name:8}  {row(found, base)}", flush=True)


def row(found: Sequence[Outcome], base: Sequence[Outcome]) -> str:
    """Return means over the seeds, relative to the first policy where they are ratios."""

    def ratio(field: str) -> float:
        pairs = zip(found, base, strict=True)
        return statistics.fmean(getattr(a, field) / getattr(b, field) for a, b in pairs)

    mean, used, useful, changes = (
        statistics.fmean(getattr(each, field) for each in found)
        for field in ("mean_jct", "used", "useful", "changes")
    )
    return (
        f"{mean:7.0f} s  {ratio('mean_jct'):5.2f}  {ratio('p99_jct'):9.2f}  "
        f"{ratio('inelastic_jct'):5.2f}  {used:4.0%}  {useful:4.0%} {changes:4.1f}"
    )


if __name__ == "__main__":
    main()
