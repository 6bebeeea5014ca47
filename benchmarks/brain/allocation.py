"""Time of one allocation: 512 elastic jobs and 2,000 devices."""

import statistics
import time

import numpy as np

from gangline.brain.advisers.advice import Choice
from gangline.brain.allocation import AllocationJob, allocate


def make_jobs(count: int, random: np.random.Generator) -> list[AllocationJob]:
    """Jobs of one to eight devices that may grow to 16 or 32."""
    jobs = []
    for index in range(count):
        unit = int(random.choice([1, 1, 2, 4]))
        most = int(random.choice([16, 32]))
        serial = float(random.uniform(0.01, 0.5))
        jobs.append(
            AllocationJob(
                key=f"job-{index}",
                workers=int(random.integers(1, 3)),
                devices=unit,
                minimum=1,
                maximum=most // unit,
                queue=f"queue-{index % 8}",
                rest_s=float(random.uniform(600, 36_000)),
                choices=tuple(
                    Choice(value=n, goodput=rate, low=rate, high=rate)
                    for n in range(1, most // unit + 1)
                    for rate in [n * unit / (1 + serial * (n * unit - 1))]
                ),
            )
        )
    return jobs


def main() -> None:
    random = np.random.default_rng(1)
    jobs = make_jobs(512, random)
    used = sum(job.used for job in jobs)
    spare = 2000 - used
    nodes = {f"n{i}": 8 for i in range(spare // 8)}
    entitled = {f"queue-{index}": 250.0 for index in range(8)}
    taken = []
    for _ in range(5):
        started = time.process_time()
        found = allocate(jobs, nodes, entitled)
        taken.append(1000 * (time.process_time() - started))
    changed = sum(found.sizes[job.key] != job.workers for job in jobs)
    print(
        f"512 jobs with {used} of 2,000 devices: {statistics.median(taken):.0f} ms of processor "
        f"time (target 500), {changed} jobs change their size"
    )


if __name__ == "__main__":
    main()
