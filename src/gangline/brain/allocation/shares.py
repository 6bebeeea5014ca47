"""The fair share of each job: what its queue entitles it to, between its least and largest size."""

from collections.abc import Mapping, Sequence

from gangline.brain.allocation.jobs import AllocationJob

_ROUNDS = 60


def fair_sizes(
    jobs: Sequence[AllocationJob], entitlements: Mapping[str, float]
) -> dict[str, float]:
    """Return the devices that each job is entitled to.

    The devices of a queue are divided by the weights of its jobs. What jobs at their largest size
    leave goes to the other jobs of the queue.

    Args:
        jobs: all running elastic jobs.
        entitlements: devices by queue, without those of jobs that are not elastic. A queue that is
            absent is entitled to nothing, and its jobs to their least sizes.
    """
    queues: dict[str, list[AllocationJob]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append(job)
    fair: dict[str, float] = {}
    for queue, members in queues.items():
        level = _level(members, entitlements.get(queue, 0.0))
        fair |= {job.key: _share(job, level) for job in members}
    return fair


def _share(job: AllocationJob, level: float) -> float:
    return min(max(level * job.weight, float(job.minimum)), float(job.maximum))


def _level(jobs: Sequence[AllocationJob], devices: float) -> float:
    """Devices for each unit of weight at which the shares add up to ``devices``, by bisection."""
    low, high = 0.0, max(job.maximum / job.weight for job in jobs)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if sum(_share(job, middle) for job in jobs) > devices:
            high = middle
        else:
            low = middle
    return low
