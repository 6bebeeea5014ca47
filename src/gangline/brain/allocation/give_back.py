"""Which elastic jobs shrink so that a waiting gang can start, before the scheduler evicts pods.

The shrinks with the least weighted loss of goodput are chosen. They are made only if together with
the free devices they place the complete gang: a partial one would cost and help no job.
"""

from collections import Counter
from collections.abc import Sequence

from gangline.brain.allocation.jobs import (
    AllocationJob,
    AllocationNode,
    WaitingGang,
    goodput_of,
)
from gangline.brain.allocation.placement import after_shrink, free_by_node, placed
from gangline.brain.allocation.solve import Option, divide


def give_back(
    jobs: Sequence[AllocationJob], nodes: Sequence[AllocationNode], gang: WaitingGang
) -> dict[str, int] | None:
    """Return the smaller sizes by job that let the gang start.

    Returns:
        An empty dict if it fits without; None if no shrink of these jobs lets it start.
    """
    free = free_by_node(nodes)
    if placed(free, gang.unit, gang.pods) is not None:
        return {}
    options = {job.key: _options(job) for job in jobs}
    owned = sum(job.devices for job in jobs)
    least = sum(min(option.devices for option in each) for each in options.values())
    # Devices on other nodes may not help, so more is given back until the pods have nodes.
    for needed in range(max(gang.devices - sum(free.values()), 1), owned - least + 1):
        division = divide(options, owned - needed)
        if division is None:
            return None
        sizes = {key: options[key][index].devices for key, index in division.chosen.items()}
        left = Counter(free)
        for job in jobs:
            left = after_shrink(left, job, sizes[job.key])
        if placed(left, gang.unit, gang.pods) is not None:
            return {job.key: sizes[job.key] for job in jobs if sizes[job.key] < job.devices}
    return None


def lost_share(job: AllocationJob, devices: int) -> float:
    """Return the share of the job's goodput that a smaller size loses."""
    now, then = goodput_of(job, job.devices), goodput_of(job, devices)
    return 0.0 if not now or then is None else max(1 - then / now, 0.0)


def _options(job: AllocationJob) -> list[Option]:
    options = [Option(job.devices, 0.0)]
    if job.fixed or goodput_of(job, job.devices) is None:
        return options
    for size in range(job.devices - job.unit, max(job.minimum, 1) - 1, -job.unit):
        if goodput_of(job, size) is not None:
            # Fewer shrinks with the same loss are better: each restarts a job.
            cost = job.cost_s / max(job.rest_s, job.cost_s)
            options.append(Option(size, job.weight * (lost_share(job, size) + cost)))
    return options
