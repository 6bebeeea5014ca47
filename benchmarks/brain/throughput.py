"""Held-out error and coverage of the throughput model on synthetic jobs, and the time of a fit."""

import statistics
import time
from dataclasses import dataclass

import numpy as np

from gangline.brain.models.throughput import (
    HIGH,
    LOW,
    Configuration,
    StepObservation,
    fit_throughput,
)

PER_NODE = 8
NOISE, STRAGGLERS, LOST = 0.05, 0.02, 0.05
"""Log-deviation of a segment, share of segments with a slow rank, share of lost segments."""


@dataclass(frozen=True)
class TrueJob:
    """The real step time of one synthetic job, in the form of no model that is fitted here."""

    fixed: float
    per_sample: float
    latency: float
    exchange: float
    between: float
    overlap: float

    def parts(self, at: Configuration) -> tuple[float, float]:
        # Small batches use a device less: the true curve is not quite linear.
        compute = self.fixed + self.per_sample * at.micro_batch**0.97
        if at.procs == 1:
            return compute, 0.0
        volume = 2 * (at.procs - 1) / at.procs
        slower = self.between if at.nodes > 1 else 1.0
        hops = self.latency * np.log2(at.procs) * (2.0 if at.nodes > 1 else 1.0)
        return compute, volume * self.exchange * slower + hops

    def step(self, at: Configuration) -> float:
        compute, sync = self.parts(at)
        g = self.overlap
        return float((at.accumulation - 1) * compute + (compute**g + sync**g) ** (1 / g))


def make_job(random: np.random.Generator) -> TrueJob:
    compute = 10 ** random.uniform(-1.5, 0.3)
    fixed = compute * random.uniform(0.05, 0.5)
    return TrueJob(
        fixed,
        (compute - fixed) / 32,
        compute * random.uniform(0.0, 0.02),
        compute * 10 ** random.uniform(-2, -0.5),
        random.uniform(1.5, 6),
        random.uniform(1, 4),
    )


def size(procs: int, micro_batch: float) -> Configuration:
    return Configuration(-(-procs // PER_NODE), procs, micro_batch)


def observe(
    job: TrueJob, at: Configuration, count: int, random: np.random.Generator, *, parts: bool
) -> list[StepObservation]:
    """Return noisy segments; ``parts`` if the script reports computing and exchange."""
    seen = []
    for _ in range(count):
        if random.random() < LOST:
            continue
        slow = 1 + random.uniform(0.1, 0.5) if random.random() < STRAGGLERS else 1.0
        factor = float(np.exp(random.normal(0, NOISE))) * slow
        compute, sync = job.parts(at)
        seen.append(
            StepObservation(
                at,
                int(random.integers(50, 500)),
                job.step(at) * factor,
                compute * at.accumulation * factor if parts else None,
                sync * factor * float(np.exp(random.normal(0, NOISE))) if parts else None,
                float(random.uniform(0, 7)),
            )
        )
    return seen


def held_out(jobs: int, *, parts: bool, sizes: tuple[int, ...], seed: int) -> dict[str, float]:
    """Fit jobs at some sizes; compare predictions at other sizes with the true step times."""
    random = np.random.default_rng(seed)
    errors: dict[str, list[float]] = {"within": [], "beyond": []}
    covered: dict[str, list[bool]] = {"within": [], "beyond": []}
    inside = [n for n in range(min(sizes) + 1, max(sizes)) if n not in sizes]
    beyond = [2 * max(sizes)]
    for _ in range(jobs):
        job = make_job(random)
        batches = {n: float(random.choice([16, 32, 64])) for n in sizes}
        data = [
            each
            for n in sizes
            for each in observe(job, size(n, batches[n]), 6, random, parts=parts)
        ]
        model = fit_throughput(data)
        if model is None:
            continue
        least, most = model.seen.micro_batch
        for where, others in (("within", inside), ("beyond", beyond)):
            for n in others:
                at = size(n, float(random.uniform(least, most)))
                truth = job.step(at)
                low, high = np.quantile(model.samples([at])[1][0], [LOW, HIGH])
                errors[where].append(abs(model.step_time(at) / truth - 1))
                covered[where].append(bool(low <= truth <= high))
    return {
        "within": statistics.median(errors["within"]),
        "within_covered": statistics.mean(covered["within"]),
        "beyond": statistics.median(errors["beyond"]),
        "beyond_covered": statistics.mean(covered["beyond"]),
    }


def fit_time(segments: int = 200) -> tuple[float, float]:
    """Return the median milliseconds of a fit of step times only, and of one with its parts."""
    random = np.random.default_rng(3)
    job = make_job(random)
    taken = []
    for parts in (False, True):
        data = []
        while len(data) < segments:
            n = int(random.choice([1, 2, 4, 8, 16, 24, 32]))
            data += observe(job, size(n, float(random.choice([16, 32]))), 1, random, parts=parts)
        runs = []
        for _ in range(15):
            started = time.process_time()
            fit_throughput(data)
            runs.append(time.process_time() - started)
        taken.append(1000 * statistics.median(runs))
    return taken[0], taken[1]


def main() -> None:
    for parts in (True, False):
        for sizes in ((2, 4, 8), (1, 4, 8, 16), (4, 8, 16, 32)):
            result = held_out(200, parts=parts, sizes=sizes, seed=7)
            kind = "computing and exchange reported" if parts else "step times only"
            print(
                f"{kind}, sizes {sizes}: median error {result['within']:.1%} within the sizes "
                f"({result['within_covered']:.0%} in the range of 80 %), {result['beyond']:.1%} "
                f"at twice the largest ({result['beyond_covered']:.0%})"
            )
    steps, apart = fit_time()
    print(f"fit of 200 segments: {steps:.1f} ms of step times, {apart:.1f} ms with parts")


if __name__ == "__main__":
    main()
