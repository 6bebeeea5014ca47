"""Sizes of all jobs of a simulated cluster: the Brain against static sizes and other policies.

The scheduler is the real one on virtual time. Half of the jobs are elastic, of five families with
different scaling. The Brain sees noisy segments of the families' earlier and running jobs, and its
actions pass the guard; trials are not simulated, each action counts as kept. The other policies
know the true curves and the true rest of each job. Their originals are larger; these follow the
published objectives only:

* Optimus (EuroSys 2018): devices go one by one to the job whose rest shrinks most; no cost.
* Pollux (OSDI 2021): power mean p = -1 of speed-ups, restart factor, genetic search.
* Sia (SOSP 2023): powers of two, values by the smallest size to the power -0.5, restart factor,
  solved exactly.
* Oracle: our own allocation with true curves and rests, without a guard.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import msgspec
import numpy as np

from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.api.resource_list import GPU
from gangline.brain.advisers.advice import Advice, Choice, Verdict
from gangline.brain.advisers.view import AdviserView
from gangline.brain.advisers.workers import best_size, floor_of, size_choices
from gangline.brain.allocation import (
    AllocationJob,
    EntitledGang,
    Option,
    allocate,
    allocation_advice,
    divide,
    give_back,
    give_back_advice,
)
from gangline.brain.facts.records import Mode, RecordedJob, Run
from gangline.brain.guard.decide import begin_action, decide, observe, started
from gangline.brain.guard.policy import ClusterState, GuardJobState, Permission
from gangline.brain.models.throughput import ThroughputModel, fit_throughput, observations
from gangline.scheduler.simulate.engine import (
    JobRun,
    Resizer,
    ResizeView,
    Resizing,
    Simulation,
    SimulationHistory,
)
from gangline.scheduler.simulate.trace import (
    TRACE_SHAPES,
    Scaling,
    SimulatedCluster,
    TraceJob,
    generate_trace,
    pod_request,
)
from gangline.scheduler.types import NodeInfo, NodeName, QueueInfo

NODES, DEVICES = 8, 8
FAMILIES = {
    "cnn": Scaling(r0=0.002, r1=0.004),
    "bert": Scaling(r0=0.005, r1=0.015),
    "fsdp": Scaling(r0=0.01, r1=0.03, x1=0.0005),
    "recommendation": Scaling(r0=0.02, r1=0.05, x1=0.002),
    "rnn": Scaling(r0=0.05, r1=0.10, x1=0.005),
}
"""Communication in units of the computing of a job's batch on one device."""
STEP_S = 20.0
BATCH = 2**14
NOISE = 0.05
PERMISSION = Permission(mode=Mode.APPLY)


def make_cluster(*, fifo: bool = False) -> SimulatedCluster:
    amounts = pod_request(64, "1Ti", DEVICES)
    nodes = tuple(
        NodeInfo(NodeName(f"n{i}"), (*((k, v) for k, v in amounts if k != "pods"), ("pods", 110)))
        for i in range(NODES)
    )
    queues = (QueueInfo("default", fifo=True),) if fifo else ()
    return SimulatedCluster(nodes, queues)


def make_jobs(shape: str, load: float, seed: int, count: int, restart_s: float) -> list[TraceJob]:
    """Half of the jobs are elastic, in pods of one device."""
    random = Random(seed)
    names = list(FAMILIES)
    jobs = []
    for drawn in generate_trace(TRACE_SHAPES[shape], count, make_cluster(), load, seed):
        devices = devices_of(drawn)
        job = replace(drawn, fails_after=0.0)
        if random.random() < 0.5 and devices <= 16:
            job = replace(
                job,
                name=f"{job.name}-{random.choice(names)}",
                size=devices,
                request=pod_request(4, "16Gi", 1),
                minimum=max(1, devices // 4),
                maximum=min(4 * devices, 32),
                restart_s=restart_s,
            )
            job = replace(job, scaling=FAMILIES[family_of(job)])
        jobs.append(job)
    return [job for job in jobs if devices_of(job) <= NODES * DEVICES // 2]


def devices_of(job: TraceJob) -> int:
    return job.size * unit_of(job)


def unit_of(job: TraceJob) -> int:
    return dict(job.request).get(GPU, 0)


def family_of(job: TraceJob) -> str:
    return job.name.rpartition("-")[2]


def rest_of(run: JobRun, now: float) -> float:
    """True rest at the present speed."""
    return max(run.job.duration - run.saved - run.work(now), 1.0) / max(run.rate, 1e-9)


def free_devices(view: ResizeView) -> dict[str, int]:
    return {name: max(amounts.get(GPU, 0), 0) for name, amounts in view.free.items()}


def capacity(view: ResizeView) -> int:
    """Devices of running elastic jobs and free ones, less what waiting jobs need in their order."""
    have = sum(run.bound for run in view.running) + sum(free_devices(view).values())
    least = sum(run.job.minimum for run in view.running)
    for run in view.waiting:
        needed = run.job.minimum * unit_of(run.job)
        if have - needed < least:
            break
        have -= needed
    return have


def optimus(view: ResizeView) -> Mapping[str, int]:
    sizes = {run.job.name: run.job.minimum for run in view.running}
    left = capacity(view) - sum(sizes.values())
    runs = {run.job.name: run for run in view.running}

    def gain(name: str) -> float:
        run, size = runs[name], sizes[name]
        if size >= run.job.maximum:
            return 0.0
        work = rest_of(run, view.now) * run.rate
        return work / run.job.rate(size) - work / run.job.rate(size + 1)

    while left > 0 and sizes:
        best = max(sizes, key=gain)
        if gain(best) <= 0:
            break
        sizes[best] += 1
        left -= 1
    return sizes


def restart_factor(run: JobRun, now: float) -> float:
    age = now - (run.first_started or now)
    cost = run.job.restart_s
    return max((age - run.resized * cost) / (age + cost), 0.0) if age > 0 else 0.0


def sia(view: ResizeView) -> Mapping[str, int]:
    options: dict[str, list[Option]] = {}
    for run in view.running:
        job = run.job
        sizes = {job.minimum, run.bound} | {
            2**power for power in range(6) if job.minimum <= 2**power <= job.maximum
        }
        least = job.rate(job.minimum)
        each = []
        for size in sorted(sizes):
            value = job.rate(size) / least
            if size != run.bound:
                value *= restart_factor(run, view.now)
            if value > 0:
                each.append(Option(size, size, value**-0.5))
        options[job.name] = each
    chosen = divide(options, max(capacity(view), 0)) if options else None
    return {name: option.devices for name, option in (chosen or {}).items()}


def pollux(seed: int) -> Resizer:
    random = np.random.default_rng(seed)

    def decide_sizes(view: ResizeView) -> Mapping[str, int]:
        runs = view.running
        if not runs:
            return {}
        room = capacity(view)
        low = np.array([run.job.minimum for run in runs])
        high = np.array([run.job.maximum for run in runs])
        now = np.array([run.bound for run in runs])
        fair = np.clip(room // len(runs), low, high)
        most = int(high.max())
        table = np.array([[run.job.rate(n) for n in range(1, most + 1)] for run in runs])
        index = np.arange(len(runs))
        table = table / table[index, fair - 1][:, None]
        factor = np.array([restart_factor(run, view.now) for run in runs])

        def fitness(people: np.ndarray) -> np.ndarray:
            speed = table[index, people - 1]
            speed = np.where(people != now, speed * np.maximum(factor, 1e-3), speed)
            excess = np.maximum(people.sum(axis=1) - room, 0)
            return np.asarray(-(1 / speed).mean(axis=1) - 1e3 * excess)

        people = np.vstack([now, fair, low, *(random.integers(low, high + 1) for _ in range(47))])
        people = np.clip(people, low, high)
        for _ in range(40):
            order = np.argsort(-fitness(people))[:25]
            parents = people[order]
            pairs = parents[random.integers(0, 25, (25, 2))]
            mixed = np.where(random.random((25, len(runs))) < 0.5, pairs[:, 0], pairs[:, 1])
            changed = random.random(mixed.shape) < 1.5 / len(runs)
            step = random.integers(-4, 5, mixed.shape)
            mixed = np.clip(np.where(changed, mixed + step, mixed), low, high)
            people = np.vstack([parents, mixed])
        best = people[int(np.argmax(fitness(people)))]
        if best.sum() > room:
            return {}
        return {run.job.name: int(size) for run, size in zip(runs, best, strict=True)}

    return decide_sizes


def allocation_job(
    run: JobRun, choices: Sequence[Choice], most: int, rest_s: float, *, fixed: bool
) -> AllocationJob:
    job = run.job
    return AllocationJob(
        key=job.name,
        workers=run.bound,
        devices=1,
        minimum=job.minimum,
        maximum=max(most, run.bound),
        choices=tuple(choices),
        queue="default",
        rest_s=rest_s,
        cost_s=job.restart_s,
        fixed=fixed,
    )


def spread_nodes(view: ResizeView) -> dict[str, int]:
    """Pods of one device fit on any node, so one node is enough for elastic jobs."""
    return {"all": sum(free_devices(view).values())}


def oracle(view: ResizeView) -> Mapping[str, int]:
    jobs = []
    for run in view.running:
        choices = [
            Choice(value=n, goodput=rate, low=rate, high=rate)
            for n in range(run.job.minimum, run.job.maximum + 1)
            for rate in [run.job.rate(n)]
        ]
        job = allocation_job(run, choices, run.job.maximum, rest_of(run, view.now), fixed=False)
        jobs.append(msgspec.structs.replace(job, nodes=("all",) * run.bound))
    free = capacity(view) - sum(job.used for job in jobs)
    if free < 0:
        gang = EntitledGang(key="w", pods=-free + sum(free_devices(view).values()), unit=1)
        return give_back(jobs, spread_nodes(view), gang) or {}
    entitled = {"default": float(sum(job.used for job in jobs) + free)}
    found = allocate(jobs, {"all": free}, entitled)
    return {job.key: found.sizes[job.key] for job in jobs if found.sizes[job.key] != job.workers}


@dataclass
class BrainResizer:
    """The Brain: models of families from noisy segments, allocation, guard."""

    seed: int
    states: dict[str, GuardJobState] = field(default_factory=dict)
    cluster: ClusterState = field(
        default_factory=lambda: ClusterState(leader=True, knows_time=True, gpus=NODES * DEVICES)
    )
    seen: dict[str, dict[int, list[SegmentFacts]]] = field(default_factory=dict)
    models: dict[str, tuple[int, ThroughputModel | None]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    actions: int = 0
    held: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def __call__(self, view: ResizeView) -> Mapping[str, int]:
        now_ms = round(view.now * 1000)
        self.cluster = msgspec.structs.replace(self.cluster, resizes_under_way=0, gpus_in_restart=0)
        jobs = []
        for run in view.running:
            self._observe(run, view.now)
            job = self._job(run, view.now)
            if job is not None:
                jobs.append(job)
        sizes: dict[str, int] = {}
        for name, advice in self._advice(jobs, view).items():
            state = observe(self.states[name], [advice], now_ms)
            decision = decide(advice, state, self.cluster, PERMISSION, now_ms)
            if decision.held_because is not None:
                code = decision.held_because.code
                self.held[code] = self.held.get(code, 0) + 1
            if decision.act and decision.value is not None:
                action = begin_action(advice, decision, state, now_ms)
                action = msgspec.structs.replace(action, id=self.actions + 1)
                state, self.cluster = started(action, state, self.cluster)
                kept = msgspec.structs.replace(action, verdict=Verdict.KEPT, cost_ms=60_000)
                state = msgspec.structs.replace(
                    state, actions=(*state.actions[:-1], kept), plan_open=False
                )
                self.actions += 1
                sizes[name] = int(decision.value)
            self.states[name] = state
        return sizes

    def _observe(self, run: JobRun, now: float) -> None:
        """A noisy segment each five minutes."""
        job = run.job
        if now - self.last.get(job.name, run.started or now) < 300 or run.started is None:
            self.last.setdefault(job.name, now)
            return
        self.last[job.name] = now
        if self.random.random() < 0.05 or run.started + 60 > now or job.scaling is None:
            return
        sync = job.scaling.communication(run.bound)
        factor = float(np.exp(self.random.normal(0, NOISE)))
        if self.random.random() < 0.02:
            factor *= 1 + self.random.uniform(0.1, 0.5)
        step_s = STEP_S * (1 / run.bound + sync) * factor
        segment = SegmentFacts(
            round=run.resized, since=round(now * 1000) - 300_000, until=round(now * 1000),
            nodes=run.bound, procs=run.bound, micro_batch=-(-BATCH // run.bound), accumulation=1,
            global_batch=BATCH, steps=max(int(300 / step_s), 1),
            step_seconds=StepSeconds(1, step_s),
            compute_seconds=STEP_S / run.bound * factor, sync_seconds=STEP_S * sync * factor,
        )  # fmt: skip
        group = self.seen.setdefault(family_of(job), {}).setdefault(run.bound, [])
        group.append(segment)
        del group[:-10]

    def _model(self, name: str, now_ms: int) -> ThroughputModel | None:
        groups = self.seen.get(name, {})
        count = sum(len(group) for group in groups.values())
        known = self.models.get(name)
        if known is None or count != known[0]:
            data = [segment for group in groups.values() for segment in group]
            known = (count, fit_throughput(observations(data, now_ms)))
            self.models[name] = known
        return known[1]

    def _job(self, run: JobRun, now: float) -> AllocationJob | None:
        job, now_ms = run.job, round(now * 1000)
        model = self._model(family_of(job), now_ms)
        started = run.first_started or now
        rest_s = max(now - started, 1.0)
        state = self.states.get(job.name) or GuardJobState(
            uid=job.name, family=family_of(job), started_ms=round(started * 1000)
        )
        self.states[job.name] = msgspec.structs.replace(
            state, last_segment_ms=now_ms, restart_cost_s=job.restart_s, remaining_s=rest_s,
            gpus=run.bound,
        )  # fmt: skip
        if model is None:
            return None
        choices = self._choices(run, model, now_ms)
        if not choices:
            return None
        most = best_size(choices, run.bound, floor_of(0.0)).value
        found = allocation_job(run, choices, int(most), rest_s, fixed=False)
        return msgspec.structs.replace(found, nodes=("all",) * run.bound)

    def _choices(self, run: JobRun, model: ThroughputModel, now_ms: int) -> list[Choice]:
        present = SegmentFacts(
            round=0, since=0, until=1, nodes=run.bound, procs=run.bound,
            micro_batch=-(-BATCH // run.bound), accumulation=1, global_batch=BATCH, steps=1,
            step_seconds=StepSeconds(1, 1e-06),
        )  # fmt: skip
        largest = msgspec.structs.replace(present, micro_batch=BATCH, nodes=1, procs=1)
        job = RecordedJob(
            cluster="c", uid="u", namespace="n", name="j", stem="j", kind="ElasticJob",
            submitted_ms=0, workers_min=run.job.minimum, workers_max=run.job.maximum,
        )  # fmt: skip
        view = AdviserView(now_ms=now_ms, run=Run(job=job, segments=(largest, present)))
        return size_choices(view, model)

    def _advice(self, jobs: list[AllocationJob], view: ResizeView) -> dict[str, Advice]:
        nodes = spread_nodes(view)
        if view.waiting:
            first = view.waiting[0]
            gang = EntitledGang(
                key=first.job.name, pods=first.job.minimum * unit_of(first.job), unit=1
            )
            back = give_back(jobs, nodes, gang)
            return give_back_advice(jobs, back, gang) if back else {}
        total = sum(job.used for job in jobs) + sum(nodes.values())
        found = allocate(jobs, nodes, {"default": float(total)})
        return allocation_advice(jobs, found, 0.0)


@dataclass(frozen=True)
class Outcome:
    """Job completion times of one run."""

    mean: float
    p99: float
    inelastic: float
    resizes: float
    """Of an elastic job."""
    useful: float
    """Device seconds of jobs, at their own sizes, that ended before the last arrival; a share."""
    used: float
    """Devices in use until the last arrival, as a share."""


def simulate(
    jobs: Sequence[TraceJob], resizer: Resizer | None, *, elastic: bool, fifo: bool = False
) -> Outcome:
    if not elastic:
        jobs = [replace(job, minimum=job.size, scaling=None, maximum=0) for job in jobs]
    resizing = None if resizer is None else Resizing(resizer, 60.0)
    history = Simulation(make_cluster(fifo=fifo), jobs, resizing=resizing).run()
    runs = list(history.runs.values())
    times = [(run.ended or 0.0) - run.job.arrival for run in runs]
    rigid = [t for t, run in zip(times, runs, strict=True) if run.job.restart_s == 0.0]
    flexible = [run for run in runs if run.job.restart_s > 0]
    last = max(run.job.arrival for run in runs)
    done = sum(run.job.duration * devices_of(run.job) for run in runs if (run.ended or 0.0) <= last)
    return Outcome(
        mean=statistics.mean(times),
        p99=float(np.quantile(times, 0.99)),
        inelastic=statistics.mean(rigid),
        resizes=sum(run.resized for run in flexible) / max(len(flexible), 1),
        useful=done / (last * NODES * DEVICES),
        used=used_share(history, last),
    )


def used_share(history: SimulationHistory, until: float) -> float:
    """Return the mean share of the devices that pods have until a time."""
    ends = [*(sample.at for sample in history.samples[1:]), math.inf]
    used = sum(
        sample.running.get(GPU, 0) * max(min(end, until) - sample.at, 0.0)
        for sample, end in zip(history.samples, ends, strict=True)
    )
    return used / (until * NODES * DEVICES)


def policies(seed: int) -> dict[str, Callable[[list[TraceJob]], Outcome]]:
    return {
        "static FIFO": lambda jobs: simulate(jobs, None, elastic=False, fifo=True),
        "static": lambda jobs: simulate(jobs, None, elastic=False),
        "Brain": lambda jobs: simulate(jobs, BrainResizer(seed), elastic=True),
        "Optimus-style": lambda jobs: simulate(jobs, optimus, elastic=True),
        "Pollux-style": lambda jobs: simulate(jobs, pollux(seed), elastic=True),
        "Sia-style": lambda jobs: simulate(jobs, sia, elastic=True),
        "oracle": lambda jobs: simulate(jobs, oracle, elastic=True),
    }


def main(
    shapes: Sequence[str] = ("philly", "helios", "pai"),
    loads: Sequence[float] = (0.6, 0.8, 1.0),
    seeds: Sequence[int] = (1, 2, 3),
    restart_s: float = 60.0,
    count: int = 150,
) -> None:
    for shape in shapes:
        for load in loads:
            found: dict[str, list[Outcome]] = {}
            for seed in seeds:
                jobs = make_jobs(shape, load, seed, count, restart_s)
                for name, run in policies(seed).items():
                    found.setdefault(name, []).append(run(jobs))
            base = found["static"]
            for name, outcomes in found.items():
                pairs = list(zip(outcomes, base, strict=True))
                print(
                    f"{shape} {load:.1f} restart {restart_s:.0f} s {name}: mean JCT "
                    f"{statistics.mean(o.mean for o in outcomes):.0f} s "
                    f"({statistics.mean(o.mean / b.mean for o, b in pairs):.2f} of static), p99 "
                    f"{statistics.mean(o.p99 / b.p99 for o, b in pairs):.2f}, inelastic "
                    f"{statistics.mean(o.inelastic / b.inelastic for o, b in pairs):.2f}, useful "
                    f"{statistics.mean(o.useful / b.useful for o, b in pairs):.2f}, used "
                    f"{statistics.mean(o.used for o in outcomes):.2f} of the devices, "
                    f"{statistics.mean(o.resizes for o in outcomes):.1f} resizes",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:] == ["quick"]:
        main(("pai",), (0.8,), (1,), count=80)
    else:
        main()
