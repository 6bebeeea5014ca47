"""Sizes of single jobs: regret, false actions, and worsenings that are found (simulated).

Regret compares a job with the best constant size: the largest whose last GPUs gain half of the
average. A GPU is worth half of what the average GPU of the best size does, so that too many and too
few both cost.
"""

import statistics
from dataclasses import dataclass

import msgspec
import numpy as np

from benchmarks.brain.simulated_job import SEGMENT_S, WARM_UP_S, SimulatedJob
from benchmarks.brain.throughput import LOST, NOISE, STRAGGLERS, TrueJob, make_job
from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Choice, GuardAction, Verdict, What
from gangline.brain.advisers.workers import best_size, floor_of
from gangline.brain.guard.trial import baseline, judge
from gangline.brain.models.throughput import Configuration

LOW, HIGH, EACH, BATCH = 1, 12, 4, 55_440 // 4
HOURS = 8


@dataclass(frozen=True)
class TrueCurve:
    """The step time of a synthetic job."""

    job: TrueJob

    def __call__(self, at: Configuration) -> float:
        return self.job.step(at)

    def sync(self, at: Configuration) -> float:
        return min(self.job.parts(at)[1], 0.9 * self.job.step(at))


@dataclass
class Value:
    """What a job's time is worth: work less GPU time, in shares of the best size's work."""

    best: int
    rate: float
    worth: float
    """Work that a GPU second must bring."""

    def net(self, work: float, gpu_s: float) -> float:
        return work - self.worth * gpu_s

    def regret(self, work: float, gpu_s: float, seconds: float) -> float:
        ideal = self.net(self.rate * seconds, self.best * EACH * seconds)
        return (ideal - self.net(work, gpu_s)) / (self.rate * seconds)


def value_of(job: SimulatedJob) -> Value:
    rates = {n: job.rate(n) for n in range(LOW, HIGH + 1)}
    choices = [Choice(value=n, goodput=r, low=r, high=r) for n, r in rates.items()]
    best = int(best_size(choices, LOW, floor_of(0.0)).value)
    return Value(best, rates[best], 0.5 * rates[best] / (best * EACH))


def sizes(count: int, seed: int = 11) -> dict[str, float]:
    """Regret and actions of ``count`` jobs that start at a random size."""
    random = np.random.default_rng(seed)
    first, later, static, actions, false, days = [], [], [], 0, 0, 0.0
    for index in range(count):
        job = SimulatedJob(
            TrueCurve(make_job(random)),
            LOW,
            HIGH,
            int(random.integers(LOW, HIGH + 1)),
            BATCH,
            int(random.choice([64, 128, 256])),
            EACH,
            seed=index,
            total_s=(HOURS + 4) * 3600.0,
        )
        value = value_of(job)
        start = job.size
        job.run(1)
        work, gpu_s = job.work, job.gpu_s
        first.append(value.regret(work, gpu_s, 3600))
        job.run(HOURS - 1)
        later.append(value.regret(job.work - work, job.gpu_s - gpu_s, (HOURS - 1) * 3600))
        static.append(value.regret(job.rate(start) * 3600, start * EACH * 3600, 3600))
        days += HOURS / 24
        for action in job.actions:
            if action.rollback_of or action.before is None or action.after is None:
                continue
            actions += 1
            before, after = (
                value.net(job.rate(int(n)), n * EACH) for n in (action.before, action.after)
            )
            gain = (after - before) / value.rate
            rolled_back = job.verdicts.get(action.id) is Verdict.ROLLED_BACK
            false += rolled_back or gain < 0.02
    return {
        "first hour": statistics.mean(first),
        "later": statistics.mean(later),
        "start size kept": statistics.mean(static),
        "worst later": max(later),
        "actions": actions / count,
        "false": false / max(actions, 1),
        "false a day": false / days,
    }


def worsenings(loss: float, count: int = 2000, seed: int = 5) -> tuple[float, float]:
    """Return the share of found worsenings, and the longest minutes from the warm-up to it."""
    random = np.random.default_rng(seed)
    found, longest = 0, 0.0
    for _ in range(count):
        before = _segments(random, 0, 8, 4, 1.0)
        at_ms = before[-1].until + 30_000
        action = GuardAction(
            id="a",
            job="u",
            family="f",
            what=What.WORKERS,
            at_ms=at_ms,
            before=4,
            after=8,
            predicted=Choice(value=8, goodput=1.4, low=1.2, high=1.7),
            baseline=baseline(before, at_ms),
        )
        start_ms = at_ms + (60 + WARM_UP_S) * 1000
        after = _segments(random, start_ms, 12, 8, 1 - loss)
        for looked in range(1, 13):
            now_ms = start_ms + looked * SEGMENT_S * 1000
            seen = [segment for segment in after if segment.until <= now_ms]
            verdict = judge(action, seen, now_ms).verdict
            if verdict is Verdict.ROLLED_BACK:
                found += 1
                longest = max(longest, looked * SEGMENT_S / 60)
                break
            if verdict is not Verdict.PENDING:
                action = msgspec.structs.replace(action, verdict=verdict, judged_ms=now_ms)
    return found / count, longest


def _segments(
    random: np.random.Generator, since_ms: int, count: int, nodes: int, rate: float
) -> list[SegmentFacts]:
    found = []
    for index in range(count):
        factor = float(np.exp(random.normal(0, NOISE)))
        if random.random() < STRAGGLERS:
            factor *= 1 + random.uniform(0.1, 0.5)
        if random.random() < LOST and index:
            continue
        found.append(
            SegmentFacts(
                round=nodes,
                since=since_ms + index * SEGMENT_S * 1000,
                until=since_ms + (index + 1) * SEGMENT_S * 1000,
                nodes=nodes,
                procs=nodes,
                global_batch=1000,
                micro_batch=100,
                steps=300,
                step_seconds=StepSeconds(1, factor / rate),
            )
        )
    return found


def main() -> None:
    result = sizes(60)
    print(
        f"60 jobs, {HOURS} h, random start: regret {result['first hour']:.1%} in the first hour "
        f"(target 8 %; start size kept: {result['start size kept']:.1%}), {result['later']:.1%} "
        f"after it (target 3 %; worst {result['worst later']:.1%}); {result['actions']:.1f} "
        "actions a job (target 4)"
    )
    print(
        f"false actions: {result['false']:.0%} (target 15 %), {result['false a day']:.2f} a "
        "job-day (target 0.1)"
    )
    for loss in (0.05, 0.10, 0.15, 0.20, 0.30):
        share, longest = worsenings(loss)
        print(f"worsening by {loss:.0%}: {share:.1%} found (target 99 %), after {longest:.0f} min")


if __name__ == "__main__":
    main()
