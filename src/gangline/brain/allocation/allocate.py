"""Sizes of running elastic jobs, so that the weighted sum of slow-downs is least.

The objective is the power mean of Pollux and Sia with p = -1: the sum of ``weight / S`` over the
jobs, where S is goodput relative to the job's fair share. A change costs: the speed-up of each size
but the present one is multiplied by ``(rest - cost) / (rest + cost)``, so a job near its end keeps
its size. Afterwards each growth is placed on the free devices of nodes, largest gain first; one
that does not fit becomes smaller, and the devices are divided again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from gangline.brain.allocation.jobs import (
    AllocationJob,
    AllocationNode,
    JobAllocation,
    goodput_of,
)
from gangline.brain.allocation.placement import (
    after_shrink,
    free_by_node,
    largest_growth,
    placed,
)
from gangline.brain.allocation.shares import fair_sizes
from gangline.brain.allocation.solve import Option, divide

_REPAIRS = 4
_LEAST = 1e-9


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of all jobs, and what a refused device would have been worth."""

    jobs: dict[str, JobAllocation]
    refused: float
    """Gain of the best refused device, relative to an average device of its job; 0 to 1."""


def allocate(
    jobs: Sequence[AllocationJob],
    nodes: Sequence[AllocationNode],
    entitlements: Mapping[str, float],
) -> Allocation:
    """Divide the devices of the jobs and the free ones among the jobs.

    Args:
        jobs: running elastic jobs that let the Brain change their size.
        nodes: free devices, without those that the scheduler holds for the first gang in line.
        entitlements: devices that the elastic jobs of each queue are entitled to.
    """
    fair = fair_sizes(jobs, entitlements)
    known = [job for job in jobs if _fair_goodput(job, fair[job.key]) is not None]
    caps = {job.key: job.maximum for job in known}
    free = free_by_node(nodes)
    sizes: dict[str, int] = {}
    for _ in range(_REPAIRS):
        sizes = _divided(known, fair, caps, sum(free.values()))
        refused = _misplaced(known, sizes, free, fair)
        if not refused:
            break
        caps |= refused
    else:
        sizes |= {job.key: min(sizes[job.key], caps[job.key]) for job in known}
    found = {job.key: _result(job, sizes.get(job.key, job.devices), fair) for job in jobs}
    return Allocation(jobs=found, refused=_refused(known, sizes))


def speedup(job: AllocationJob, devices: int, fair: float) -> float | None:
    """Return goodput relative to the fair share, the cost of a change included."""
    there, reference = goodput_of(job, devices), _fair_goodput(job, fair)
    if there is None or not reference:
        return None
    ratio = there / reference
    return ratio if devices == job.devices else ratio * change_factor(job)


def change_factor(job: AllocationJob) -> float:
    """The share of a gain that a change leaves: less, the sooner the job ends."""
    if job.rest_s == float("inf"):
        return 1.0
    return max((job.rest_s - job.cost_s) / (job.rest_s + job.cost_s), _LEAST)


def _fair_goodput(job: AllocationJob, fair: float) -> float | None:
    """Goodput at the fair share, by a line between the sizes around it."""
    whole = int(fair)
    low = goodput_of(job, whole)
    high = goodput_of(job, whole + 1) if fair > whole else low
    if low is None or high is None:
        nearest = min(job.curve, key=lambda point: abs(point.devices - fair), default=None)
        return nearest.goodput if nearest and nearest.goodput > 0 else None
    value = low + (fair - whole) * (high - low)
    return value if value > 0 else None


def _options(job: AllocationJob, fair: float, cap: int) -> list[Option]:
    sizes = {job.devices}
    if not job.fixed:
        sizes |= {
            point.devices
            for point in job.curve
            if job.minimum <= point.devices <= min(cap, job.maximum)
            and (point.devices - job.devices) % job.unit == 0
        }
    options = []
    for size in sorted(sizes):
        gain = speedup(job, size, fair)
        if gain is not None and gain > 0:
            options.append(Option(size, job.weight / gain))
    return options or [Option(job.devices, 0.0)]


def _divided(
    jobs: Sequence[AllocationJob], fair: Mapping[str, float], caps: Mapping[str, int], free: int
) -> dict[str, int]:
    options = {job.key: _options(job, fair[job.key], caps[job.key]) for job in jobs}
    division = divide(options, sum(job.devices for job in jobs) + free)
    if division is None:
        return {job.key: job.devices for job in jobs}
    return {key: options[key][index].devices for key, index in division.chosen.items()}


def _misplaced(
    jobs: Sequence[AllocationJob],
    sizes: Mapping[str, int],
    free: Counter[str],
    fair: Mapping[str, float],
) -> dict[str, int]:
    """The largest size that can be placed, of each job whose new size cannot."""
    left = Counter(free)
    for job in jobs:
        if sizes[job.key] < job.devices:
            left = after_shrink(left, job, sizes[job.key])
    growing = [job for job in jobs if sizes[job.key] > job.devices]
    growing.sort(key=lambda job: _gain(job, sizes[job.key], fair[job.key]), reverse=True)
    refused = {}
    for job in growing:
        pods = (sizes[job.key] - job.devices) // job.unit
        fitting = min(pods, largest_growth(left, job.unit))
        if fitting < pods:
            refused[job.key] = job.devices + fitting * job.unit
        rest = placed(left, job.unit, fitting)
        left = left if rest is None else rest
    return refused


def _gain(job: AllocationJob, devices: int, fair: float) -> float:
    before, after = speedup(job, job.devices, fair), speedup(job, devices, fair)
    if not before or not after:
        return 0.0
    return job.weight * (1 / before - 1 / after) / (devices - job.devices)


def _refused(jobs: Sequence[AllocationJob], sizes: Mapping[str, int]) -> float:
    """Goodput of each device of the next larger size, relative to the devices that the job has."""
    best = 0.0
    for job in jobs:
        size = sizes.get(job.key, job.devices)
        now = goodput_of(job, size)
        for point in job.curve:
            if size < point.devices <= job.maximum and now and size:
                gain = (point.goodput - now) / (point.devices - size) / (now / size)
                best = max(best, gain)
    return min(best, 1.0)


def _result(job: AllocationJob, devices: int, fair: Mapping[str, float]) -> JobAllocation:
    reference = _fair_goodput(job, fair[job.key])
    there = goodput_of(job, devices)
    return JobAllocation(
        key=job.key,
        devices=devices,
        speedup=there / reference if there and reference else 1.0,
        fair=round(fair[job.key]),
        changed=devices != job.devices,
    )
