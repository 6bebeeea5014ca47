"""Processor time of simulated jobs in a thousand queues, in the shape of Kueue's scale test.

Kueue's own test (test/performance/scheduler, configuration "baseline") has cohorts of queues that
borrow from each other. Each queue deserves 20 processors, may borrow up to 120, and gets 50 jobs:
35 small ones of low priority, 11 medium and 4 large ones of high priority. Kueue's test schedules
50,000 of them in 1,000 queues in 1,179 s, about 24 ms for each job.

All queues compete from the first moment on, and the run ends when all jobs have ended, as Kueue's.
``--queues``, ``--jobs`` and ``--until`` make a short run; ``--idle`` adds queues without a job,
which should cost nothing.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator

from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.trace import (
    SimulatedCluster,
    TraceJob,
    pod_request,
    uniform_cluster,
)
from gangline.scheduler.types import QueueInfo

KUEUE_MS = 23.6
"""Published: 1,179 s for 50,000 jobs."""
CLASSES = (
    ("small", 35, 0.06, 1, 0.15, 50),
    ("medium", 11, 0.3, 5, 0.35, 100),
    ("large", 4, 0.7, 20, 0.7, 200),
)
"""Name, number in each queue, seconds between arrivals, processors, seconds, priority."""
JOBS_PER_QUEUE = sum(count for _, count, *_ in CLASSES)
COHORT = 100
"""Queues that borrow from each other."""
DESERVED, MOST, NODE = 20, 120, 32
"""Processors that a queue deserves, that it may use, and of a node."""
QUANTUM_S = 0.05


def cluster(queues: int, idle: int = 0) -> SimulatedCluster:
    """The cluster has what all queues with jobs deserve."""
    nodes = uniform_cluster(max(1, queues * DESERVED // NODE), NODE, "256Gi", 0).nodes
    cohorts = max(1, queues // COHORT)
    return SimulatedCluster(
        nodes,
        (
            *(QueueInfo(f"cohort-{number}") for number in range(cohorts)),
            *(
                QueueInfo(
                    f"queue-{number}",
                    parent=f"cohort-{number % cohorts}",
                    deserved=(("cpu", 1000 * DESERVED),),
                    capability=(("cpu", 1000 * MOST),),
                )
                for number in range(queues + idle)
            ),
        ),
    )


def jobs(queues: int) -> Iterator[TraceJob]:
    for queue in range(queues):
        for kind, count, interval_s, processors, duration_s, priority in CLASSES:
            for number in range(count):
                yield TraceJob(
                    name=f"{kind}-{queue}-{number}",
                    arrival=round(number * interval_s, 3),
                    duration=duration_s,
                    size=1,
                    request=pod_request(processors, 0, 0),
                    minimum=1,
                    queue=f"queue-{queue}",
                    priority=priority,
                )


def measure(queues: int, limit: int, until_s: float, idle: int = 0) -> str:
    """Simulate jobs until a moment; return one line with the processor time for each arrival."""
    in_time = (job for job in jobs(queues) if job.arrival <= until_s)
    arrivals = sorted(in_time, key=lambda job: (job.arrival, job.name))[:limit]
    simulation = Simulation(cluster(queues, idle), arrivals, quantum_s=QUANTUM_S)
    begun = time.process_time()
    history = simulation.run(until_s)
    spent_s = time.process_time() - begun
    ended = sum(run.ended is not None for run in history.runs.values())
    return (
        f"{len(arrivals):,} jobs in {queues:,} queues beside {idle:,} idle ones: {ended:,} ended, "
        f"{history.decisions:,} cycles, {history.evictions:,} evictions; "
        f"{spent_s / len(arrivals) * 1000:.2f} ms of processor time for each job "
        f"(Kueue, published: {KUEUE_MS} ms)"
    )


def main() -> None:
    """Print the processor time for each job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--jobs", type=int, help="default: 50 for each queue")
    parser.add_argument("--until", type=float, default=math.inf, help="simulated seconds")
    parser.add_argument("--idle", type=int, default=0, help="queues without a job")
    given = parser.parse_args(sys.argv[1:] if __name__ == "__main__" else [])
    if given.queues < 1 or (given.jobs is not None and given.jobs < 1):
        parser.error("--queues and --jobs must be at least 1")
    if given.until < 0:
        parser.error("--until must not be negative")
    limit = given.jobs or given.queues * JOBS_PER_QUEUE
    print(measure(given.queues, limit, given.until, given.idle))


if __name__ == "__main__":
    main()
