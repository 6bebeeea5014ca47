"""Time of one allocation: 512 elastic jobs and 2,000 devices."""

import statistics
import time

import numpy as np

from gangline.brain.allocation import AllocationJob, AllocationNode, SizePoint, allocate


def make_jobs(count: int, random: np.random.Generator) -> list[AllocationJob]:
    """Jobs of one to eight devices that may grow to 16 or 32."""
    jobs = []
    for index in range(count):
        unit = int(random.choice([1, 1, 2, 4]))
        most = int(random.choice([16, 32]))
        serial = float(random.uniform(0.01, 0.5))
        sizes = range(unit, most + 1, unit)
        jobs.append(
            AllocationJob(
                key=f"job-{index}",
                devices=unit * int(random.integers(1, 3)),
                unit=unit,
                minimum=unit,
                maximum=most,
                weight=float(random.choice([1.0, 2.0])),
                queue=f"queue-{index % 8}",
                rest_s=float(random.uniform(600, 36_000)),
                curve=tuple(
                    SizePoint(devices=n, goodput=n / (1 + serial * (n - 1))) for n in sizes
                ),
            )
        )
    return jobs


def main() -> None:
    random = np.random.default_rng(1)
    jobs = make_jobs(512, random)
    used = sum(job.devices for job in jobs)
    spare = 2000 - used
    nodes = [AllocationNode(name=f"n{i}", free=8) for i in range(spare // 8)]
    entitled = {f"queue-{index}": 250.0 for index in range(8)}
    taken = []
    for _ in range(5):
        started = time.process_time()
        found = allocate(jobs, nodes, entitled)
        taken.append(1000 * (time.process_time() - started))
    changed = sum(job.changed for job in found.jobs.values())
    print(
        f"512 jobs with {used} of 2,000 devices: {statistics.median(taken):.0f} ms of processor "
        f"time (target 500), {changed} jobs change their size"
    )


if __name__ == "__main__":
    main()
