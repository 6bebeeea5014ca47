"""Allocations as advice for single jobs; the guard decides about it as about any other."""

from collections.abc import Sequence

from gangline.brain.advisers.advice import Advice, Choice, Reason, What
from gangline.brain.allocation.allocate import Allocation
from gangline.brain.allocation.give_back import lost_share
from gangline.brain.allocation.jobs import AllocationJob, WaitingGang, goodput_of


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
