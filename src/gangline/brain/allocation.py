"""Sizes of running elastic jobs, so that the weighted sum of slow-downs is least.

The objective is the power mean of Pollux and Sia with p = -1: the sum of ``weight / S`` over the
jobs, where S is goodput relative to the job's fair share. A change costs: the speed-up of each size
but the present one is multiplied by ``(rest - cost) / (rest + cost)``, so a job near its end keeps
its size. The division is exact, by dynamic programming: a greedy choice on concave envelopes is
optimal only if all steps are equal. 512 jobs and 2,000 devices take a fraction of a second.

1. Each growth is placed on the free devices of nodes, largest gain first; one that does not fit
   becomes smaller, and the devices are divided again.
2. While a gang waits, the jobs shrink that lose least, if that places the complete gang.
3. The price is the gain of the best refused device, 0 to 1: 1 is a pending gang or growth without
   loss, 0 a cluster with idle devices. It is smoothed, so that one short job moves no sizes.

Sizes are counted in devices. The guard decides about the advice as about any other.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.brain.advisers.advice import Advice, Choice, Reason, What


class SizePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one size, in any unit that is the same for all sizes of the job."""

    devices: int
    goodput: float
    low: float | None = None
    """The ends of the range of 80 %; None: as ``goodput``."""
    high: float | None = None


class AllocationJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running elastic job that lets the Brain change its size."""

    key: str
    devices: int
    """Now."""
    unit: int
    """Devices of one worker pod."""
    minimum: int
    maximum: int
    curve: tuple[SizePoint, ...]
    """By size. Sizes that are not in it are not given."""
    weight: float = 1.0
    """Weight of its priority."""
    queue: str = ""
    rest_s: float = float("inf")
    """Expected rest of its time."""
    cost_s: float = 60.0
    """What a change of its size costs."""
    fixed: bool = False
    """True if its size may not change now, because of a cool-down or a change under way."""
    nodes: tuple[str, ...] = ()
    """Node of each worker, by rank. The last ones leave first."""


class AllocationNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with free devices, without those that are held for the first gang in line."""

    name: str
    free: int


class WaitingGang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that waits, and has a right to start by its queue."""

    key: str
    pods: int
    unit: int
    """Devices of one pod."""

    @property
    def devices(self) -> int:
        return self.pods * self.unit


class JobAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The size that one job should have."""

    key: str
    devices: int
    speedup: float
    """Goodput relative to the fair share."""
    fair: int
    changed: bool


def goodput_of(job: AllocationJob, devices: int) -> float | None:
    """Return the goodput of a size; between two known sizes by a line; None outside of them."""
    last: SizePoint | None = None
    for point in job.curve:
        if point.devices == devices:
            return point.goodput
        if last is not None and last.devices < devices < point.devices:
            share = (devices - last.devices) / (point.devices - last.devices)
            return last.goodput + share * (point.goodput - last.goodput)
        last = point
    return None


@dataclass(frozen=True, slots=True)
class Option:
    """One size of a job, and what is lost with it."""

    devices: int
    loss: float


@dataclass(frozen=True, slots=True)
class Division:
    """The best division."""

    chosen: dict[str, int]
    """Index of the option of each job."""
    loss: float


def divide(options: Mapping[str, Sequence[Option]], capacity: int) -> Division | None:
    """Return the division of ``capacity`` devices with the least loss; None if none fits."""
    least = {key: min(option.devices for option in sizes) for key, sizes in options.items()}
    spare = capacity - sum(least.values())
    if spare < 0:
        return None
    # Losses are counted from the least sizes on: arrays hold the spare devices only.
    best: NDArray[np.float64] = np.zeros(spare + 1)
    picks: list[NDArray[np.int32]] = []
    for key, sizes in options.items():
        best, pick = _add_job(best, [(o.devices - least[key], o.loss) for o in sizes])
        picks.append(pick)
    chosen, left = {}, int(np.argmin(best))
    loss = float(best[left])
    for key, pick in zip(reversed(list(options)), reversed(picks), strict=True):
        index = int(pick[left])
        chosen[key] = index
        left -= options[key][index].devices - least[key]
    return Division(chosen=chosen, loss=loss)


def _add_job(
    before: NDArray[np.float64], sizes: Sequence[tuple[int, float]]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return the least loss with one more job for each number of devices, and its option."""
    best = np.full_like(before, np.inf)
    pick = np.zeros(len(before), dtype=np.int32)
    for index, (extra, loss) in enumerate(sizes):
        if extra >= len(before):
            continue
        candidate = before[: len(before) - extra] + loss
        target = best[extra:]
        better = candidate < target
        target[better] = candidate[better]
        pick[extra:][better] = index
    return best, pick


def free_by_node(nodes: Iterable[AllocationNode]) -> Counter[str]:
    """Return the free devices of each node."""
    return Counter({node.name: node.free for node in nodes})


def placed(free: Mapping[str, int], unit: int, pods: int) -> Counter[str] | None:
    """Return what is free after placing pods of ``unit`` devices; None if they do not fit.

    Nodes that are filled completely come first, so that large free nodes stay free.
    """
    left = Counter(free)
    for _ in range(pods):
        fitting = [(devices % unit, devices, name) for name, devices in left.items()]
        fitting = [node for node in fitting if node[1] >= unit]
        if not fitting:
            return None
        left[min(fitting)[2]] -= unit
    return left


def largest_growth(free: Mapping[str, int], unit: int) -> int:
    """Return how many pods of ``unit`` devices fit at most."""
    return sum(devices // unit for devices in free.values() if devices > 0)


def after_shrink(free: Mapping[str, int], job: AllocationJob, devices: int) -> Counter[str]:
    """Return what is free once the job has shrunk: its last workers leave their nodes."""
    left = Counter(free)
    leaving = (job.devices - devices) // job.unit
    for node in job.nodes[len(job.nodes) - leaving :] if leaving > 0 else ():
        left[node] += job.unit
    return left


_ROUNDS = 60


def fair_sizes(
    jobs: Sequence[AllocationJob], entitlements: Mapping[str, float]
) -> dict[str, float]:
    """Return the devices that each job is entitled to.

    The devices of a queue are divided by the weights of its jobs. What jobs at their largest size
    leave goes to the other jobs of the queue.

    Args:
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
        nodes: free devices, without those that the scheduler holds for the first gang in line.
        entitlements: devices that the elastic jobs of each queue are entitled to.
    """
    fair = fair_sizes(jobs, entitlements)
    measured = [job for job in jobs if _fair_goodput(job, fair[job.key]) is not None]
    caps = {job.key: job.maximum for job in measured}
    free = free_by_node(nodes)
    sizes: dict[str, int] = {}
    for _ in range(_REPAIRS):
        sizes = _divided(measured, fair, caps, sum(free.values()))
        refused = _misplaced(measured, sizes, free, fair)
        if not refused:
            break
        caps |= refused
    else:
        sizes |= {job.key: min(sizes[job.key], caps[job.key]) for job in measured}
    results = {job.key: _result(job, sizes.get(job.key, job.devices), fair) for job in jobs}
    return Allocation(jobs=results, refused=_refused(measured, sizes))


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
        refused: gain of the best refused device, 0 to 1.
        idle_devices: free devices that no pending pod can use.
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
    options = {job.key: _shrink_options(job) for job in jobs}
    owned = sum(job.devices for job in jobs)
    least = sum(min(option.devices for option in sizes) for sizes in options.values())
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


def _shrink_options(job: AllocationJob) -> list[Option]:
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
