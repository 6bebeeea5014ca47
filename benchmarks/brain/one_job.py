"""Resizing of one job: what it costs against the best constant size, and which actions were wrong.

Five scaling curves, each from a small and a large first size and from one near the best, with noisy
segments; the true curve is hidden from the Brain. The best size is the largest whose last workers
bring half of the average by the true curve. A worsening is injected by a factor that only the
resized world has.
"""

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.brain.simulated_job import Amdahl, Curve, Exchange, SimulatedJob
from gangline.brain.advisers.advice import Choice, Verdict
from gangline.brain.advisers.workers import floor_of, largest_worthwhile

LOW, HIGH, BATCH, MICRO = 2, 16, 2048, 128
HOURS, JOBS = 8, 4
CURVES: dict[str, Callable[[], Curve]] = {
    "computing": lambda: Amdahl(0.005, 40.0),
    "small exchange": lambda: Exchange(0.01, 0.02, 0.1, 0.01),
    "large exchange": lambda: Exchange(0.01, 0.02, 1.0, 0.05),
    "a tenth serial": lambda: Amdahl(0.1, 40.0),
    "hardly scales": lambda: Amdahl(0.7, 20.0),
}


@dataclass
class Result:
    """What the resizing of one job cost."""

    first_hour: float
    """GPU time that was more than the best constant size needs for the same work, as a share."""
    later: float
    actions: int
    wrong: int
    """Actions that were rolled back, or changed the true value by less than 2 %."""
    best: int
    reached: int


def true_best(job: SimulatedJob) -> int:
    rates = {size: job.rate(size) for size in range(LOW, HIGH + 1)}
    choices = [Choice(value=n, goodput=rate, low=rate, high=rate) for n, rate in rates.items()]
    return round(largest_worthwhile(choices, floor_of(0.0))[0].value)


def value(job: SimulatedJob, size: int) -> float:
    """Speed less half of what the GPUs of the best size do: what the rule of sizes maximises."""
    best = true_best(job)
    return job.rate(size) - 0.5 * job.rate(best) / best * size


def play(curve: Curve, first: int, seed: int) -> Result:
    job = SimulatedJob(curve, LOW, HIGH, first, BATCH, MICRO, seed=seed, total_s=24 * 3600.0)
    best = true_best(job)
    job.run(1)
    early, work = job.gpu_s, job.work
    job.run(HOURS - 1)
    wrong = 0
    sizes = [size for _, size in job.history]
    for before, after in itertools.pairwise(sizes):
        gained = value(job, after) / max(value(job, before), 1e-9) - 1
        wrong += gained < 0.02
    return Result(
        _regret(job, best, early, work, 3600),
        _regret(job, best, job.gpu_s - early, job.work - work, (HOURS - 1) * 3600),
        len(sizes) - 1,
        wrong,
        best,
        job.size,
    )


def _regret(job: SimulatedJob, best: int, gpu_s: float, work: float, seconds: float) -> float:
    """Loss of value in some time against the best constant size, relative to its work."""
    price = 0.5 * job.rate(best) / best
    ideal = job.rate(best) * seconds - price * best * seconds
    return (ideal - (work - price * gpu_s)) / ideal


def injected(seed: int) -> tuple[bool, float] | None:
    """Resize into a world that is 25 % slower per step than before; return whether it was found,
    and after how many minutes of steady running. None if the job was never resized."""
    job = SimulatedJob(Amdahl(0.005, 40.0), LOW, HIGH, 4, BATCH, MICRO, seed=seed, total_s=86_400.0)
    job.disturbance = lambda j: 1.0 if j.size == 4 else 2.6
    job.run(3)
    if not job.actions:
        return None
    first = job.actions[0]
    if job.verdicts.get(first.id) is not Verdict.ROLLED_BACK:
        return False, 0.0
    began = next(at for at, size in job.history if size != 4)
    return True, (job.judged_s[first.id] - began) / 60


def noisy(seed: int) -> int:
    """Actions of a job of the best size in 50 hours, with noise of 15 % and nothing to gain."""
    job = SimulatedJob(Amdahl(0.08, 100.0), 2, 11, 11, BATCH, BATCH, seed=seed, noise=0.15)
    return len(job.run(50).actions)


def report(name: str, found: list[Result]) -> None:
    actions = sum(each.actions for each in found)
    wrong = sum(each.wrong for each in found)
    print(
        f"{name}: loss in the first hour {statistics.mean(e.first_hour for e in found):.1%}, later "
        f"{statistics.mean(e.later for e in found):.1%}; {actions} actions in {len(found)} jobs "
        f"(most {max(e.actions for e in found)}), {wrong} wrong, "
        f"{wrong / (len(found) * HOURS / 24):.2f} per job and day"
    )


def main() -> None:
    far: list[Result] = []
    near: list[Result] = []
    for name, curve in CURVES.items():
        best = true_best(SimulatedJob(curve(), LOW, HIGH, 2, BATCH, MICRO))
        ends = [play(curve(), first, seed) for first in (2, 12) for seed in range(JOBS)]
        sizes = ", ".join(map(str, sorted({each.reached for each in ends})))
        report(f"{name} (best {best}, reached {sizes})", ends)
        far += ends
        first = max(round(0.8 * best), LOW)
        near += [play(curve(), first, seed) for seed in range(JOBS)]
    report("all, first size 2 or 12", far)
    report("all, first size 0.8 of the best", near)
    print(f"noise without a gain: {sum(map(noisy, range(4)))} actions in 200 h")
    trials = [found for seed in range(40) if (found := injected(seed)) is not None]
    minutes = sorted(after for ok, after in trials if ok)
    print(
        f"worsening: {len(minutes)} of {len(trials)} found; after the resize "
        f"{statistics.median(minutes):.0f} min (median), {minutes[-1]:.0f} min at most"
    )


if __name__ == "__main__":
    main()
