"""Allocations as advice for single jobs; the guard decides about it as about any other.

The price of a device: what the best refused use would gain with it, between 0 and 1.

1 is a pending gang that may start, or growth without loss; 0 is a cluster with idle devices. The
price is smoothed, so that one short job does not move the sizes of others.

Which elastic jobs shrink so that a waiting gang can start, before the scheduler evicts pods.

The shrinks with the least weighted loss of goodput are chosen. They are made only if together with
the free devices they place the complete gang: a partial one would cost and help no job.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from gangline.brain.advisers.advice import Advice, Choice, Reason, What
from gangline.brain.allocation.allocate import (
    Allocation,
    AllocationJob,
    AllocationNode,
    Option,
    WaitingGang,
    after_shrink,
    divide,
    free_by_node,
    goodput_of,
    placed,
)

SMOOTHING_S = 600.0
IDLE_S = 300.0


class PriceState(msgspec.Struct, frozen=True, kw_only=True):
    """The price, and since when devices are idle."""

    price: float = 0.0
    at_ms: int | None = None
    idle_since_ms: int | None = None
    """None: all devices are used, or other gangs need the free ones."""


def update_price(state: PriceState, refused: float, idle_devices: int, now_ms: int) -> PriceState:
    """Return the price after an observation.

    Args:
        state: before.
        refused: gain of the best refused device, 0 to 1.
        idle_devices: free devices that no pending pod can use.
        now_ms: time of the observation.
    """
    idle_since = None
    if idle_devices > 0:
        idle_since = now_ms if state.idle_since_ms is None else state.idle_since_ms
    if idle_since is not None and now_ms - idle_since >= IDLE_S * 1000:
        return PriceState(price=0.0, at_ms=now_ms, idle_since_ms=idle_since)
    elapsed_s = 0.0 if state.at_ms is None else max(now_ms - state.at_ms, 0) / 1000
    keep = math.exp(-elapsed_s / SMOOTHING_S) if state.at_ms is not None else 0.0
    target = min(max(refused, 0.0), 1.0)
    price = keep * state.price + (1 - keep) * target
    return PriceState(price=price, at_ms=now_ms, idle_since_ms=idle_since)


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


def allocation_advice(
    jobs: Sequence[AllocationJob], allocation: Allocation, price: float
) -> dict[str, Advice]:
    """Return the advice for each job whose size should change."""
    advice = {}
    for job in jobs:
        result = allocation.jobs[job.key]
        if not result.changed:
            continue
        grows = result.devices > job.devices
        reason = Reason(
            code="SpareDevices" if grows else "OthersGainMore",
            arguments={
                "devices": result.devices,
                "speedup": result.speedup,
                "fair": result.fair,
                "price": price,
            },
        )
        advice[job.key] = _advice(job, result.devices, reason, urgent=False)
    return advice


def give_back_advice(
    jobs: Sequence[AllocationJob], sizes: dict[str, int], gang: WaitingGang
) -> dict[str, Advice]:
    """Return the advice for each job that gives devices back to a waiting gang."""
    advice = {}
    for job in jobs:
        if job.key not in sizes:
            continue
        reason = Reason(
            code="GiveBack",
            arguments={
                "gang": gang.key,
                "needed": gang.devices,
                "devices": job.devices - sizes[job.key],
                "loss": lost_share(job, sizes[job.key]),
            },
        )
        advice[job.key] = _advice(job, sizes[job.key], reason, urgent=True)
    return advice


def _advice(job: AllocationJob, devices: int, reason: Reason, *, urgent: bool) -> Advice:
    now = goodput_of(job, job.devices) or 1.0
    low, high = sorted((job.devices, devices))
    choices = tuple(
        Choice(
            value=point.devices // job.unit,
            goodput=point.goodput / now,
            low=(point.goodput if point.low is None else point.low) / now,
            high=(point.goodput if point.high is None else point.high) / now,
        )
        for point in job.curve
        if low <= point.devices <= high and point.devices % job.unit == 0
    )
    goodput = (goodput_of(job, devices) or now) / now
    ends = [choice.low for choice in choices if choice.value == devices // job.unit]
    size = 1.0 if devices > job.devices else devices / job.devices
    return Advice(
        what=What.WORKERS,
        role="worker",
        was=job.devices // job.unit,
        value=devices // job.unit,
        reason=reason,
        gain=goodput / size - 1,
        gain_low=(ends[0] if ends else goodput) / size - 1,
        urgent=urgent,
        choices=choices,
    )
