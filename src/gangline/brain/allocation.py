"""Sizes of running elastic jobs, so that the sum of slow-downs is least.

The objective is the power mean of Pollux and Sia with p = -1: the sum of ``1 / S`` over the jobs,
where S is goodput relative to the job's fair share. A change costs: the speed-up of each size but
the present one is multiplied by ``(rest - cost) / (rest + cost)``, so a job near its end keeps its
size. The division is exact, by dynamic programming: a greedy choice on concave envelopes is optimal
only if all steps are equal. 512 jobs and 2,000 devices take a fraction of a second.

1. Each growth is placed on the free devices of nodes, largest gain first; one that does not fit
   becomes smaller, and the devices are divided again.
2. While a gang waits, the jobs shrink that lose least, if that places the complete gang.
3. The price is the gain of the best refused worker, 0 to 1: 1 is a pending gang or growth without
   loss, 0 a cluster with idle devices. It is smoothed, so that one short job moves no sizes.

Sizes are counted in workers, and only the sizes of ``choices`` are given: whole node units. The
guard decides about the advice as about any other.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.brain.advisers.advice import Advice, Choice, Reason, What, because

_LEVELS = 60
_REPAIRS = 4
_LEAST = 1e-9
SMOOTHING_S = 600.0
IDLE_S = 300.0


class AllocationJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running elastic job that lets the Brain change its size."""

    key: str
    workers: int
    """Now."""
    devices: int
    """Of one worker."""
    minimum: int
    maximum: int
    choices: tuple[Choice, ...]
    """Goodput by number of workers, in that order, relative to the present number."""
    queue: str = ""
    rest_s: float = math.inf
    """Expected rest of its time."""
    cost_s: float = 60.0
    """What a change of its size costs."""
    fixed: bool = False
    """True if its size may not change now, because of a cool-down or a change under way."""
    nodes: tuple[str, ...] = ()
    """Node of each worker, by rank. The last ones leave first."""

    @property
    def used(self) -> int:
        """Devices that it uses now."""
        return self.workers * self.devices


class EntitledGang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that waits, and has a right to start by its queue."""

    key: str
    pods: int
    unit: int
    """Devices of one pod."""

    @property
    def devices(self) -> int:
        return self.pods * self.unit


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of workers of all jobs, and what a refused worker would have been worth."""

    sizes: dict[str, int]
    fair: dict[str, float]
    """Workers that each job is entitled to."""
    refused: float
    """Gain of the best refused worker, relative to an average one of its job; 0 to 1."""


def goodput_of(job: AllocationJob, workers: float) -> float | None:
    """Return the goodput of a size; between two known sizes by a line; None outside of them."""
    if not job.choices or not job.choices[0].value <= workers <= job.choices[-1].value:
        return None
    sizes = [choice.value for choice in job.choices]
    return float(np.interp(workers, sizes, [choice.goodput for choice in job.choices]))


@dataclass(frozen=True, slots=True)
class Option:
    """One size of a job, and what is lost with it."""

    workers: int
    devices: int
    loss: float


def divide(options: Mapping[str, Sequence[Option]], capacity: int) -> dict[str, Option] | None:
    """Return the options of all jobs with the least loss; None if nothing fits."""
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
    for key, pick in zip(reversed(list(options)), reversed(picks), strict=True):
        chosen[key] = options[key][int(pick[left])]
        left -= chosen[key].devices - least[key]
    return chosen


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


def _after_shrinks(
    free: Mapping[str, int], jobs: Sequence[AllocationJob], sizes: Mapping[str, int]
) -> Counter[str]:
    """Return what is free once jobs have shrunk: their last workers leave their nodes."""
    left = Counter(free)
    for job in jobs:
        leaving = max(job.workers - sizes[job.key], 0)
        for node in job.nodes[len(job.nodes) - leaving :] if leaving else ():
            left[node] += job.devices
    return left


def fair_sizes(
    jobs: Sequence[AllocationJob], entitlements: Mapping[str, float]
) -> dict[str, float]:
    """Return the workers that each job is entitled to.

    The devices of a queue are divided evenly among its jobs. What jobs at their largest size leave
    goes to the other jobs of the queue.

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
        fair |= {job.key: _share(job, level) / job.devices for job in members}
    return fair


def _share(job: AllocationJob, level: float) -> float:
    return float(min(max(level, job.minimum * job.devices), job.maximum * job.devices))


def _level(jobs: Sequence[AllocationJob], devices: float) -> float:
    """Devices of each job at which the shares add up to ``devices``, by bisection."""
    low, high = 0.0, float(max(job.maximum * job.devices for job in jobs))
    for _ in range(_LEVELS):
        middle = (low + high) / 2
        if sum(_share(job, middle) for job in jobs) > devices:
            high = middle
        else:
            low = middle
    return low


def allocate(
    jobs: Sequence[AllocationJob], free: Mapping[str, int], entitlements: Mapping[str, float]
) -> Allocation:
    """Divide the devices of the jobs and the free ones among the jobs.

    Args:
        free: free devices by node, without those that the scheduler holds for the first in line.
        entitlements: devices that the elastic jobs of each queue are entitled to.
    """
    fair = fair_sizes(jobs, entitlements)
    measured = [job for job in jobs if _fair_goodput(job, fair[job.key]) is not None]
    caps = {job.key: job.maximum for job in measured}
    sizes: dict[str, int] = {}
    for _ in range(_REPAIRS):
        sizes = _divided(measured, fair, caps, sum(free.values()))
        refused = _misplaced(measured, sizes, free, fair)
        if not refused:
            break
        caps |= refused
    else:
        sizes |= {job.key: min(sizes[job.key], caps[job.key]) for job in measured}
    sizes = {job.key: sizes.get(job.key, job.workers) for job in jobs}
    return Allocation(sizes=sizes, fair=fair, refused=_refused(measured, sizes))


def speedup(job: AllocationJob, workers: int, fair: float) -> float | None:
    """Return goodput relative to the fair share, the cost of a change included."""
    there, reference = goodput_of(job, workers), _fair_goodput(job, fair)
    if there is None or not reference:
        return None
    return there / reference * (1.0 if workers == job.workers else change_factor(job))


def change_factor(job: AllocationJob) -> float:
    """The share of a gain that a change leaves: less, the sooner the job ends."""
    if math.isinf(job.rest_s):
        return 1.0
    return max((job.rest_s - job.cost_s) / (job.rest_s + job.cost_s), _LEAST)


def _fair_goodput(job: AllocationJob, fair: float) -> float | None:
    """Goodput at the fair share; at the nearest known size where none is on both sides of it."""
    value = goodput_of(job, fair)
    if value is None:
        nearest = min(job.choices, key=lambda choice: abs(choice.value - fair), default=None)
        value = nearest.goodput if nearest else None
    return value if value and value > 0 else None


def _divided(
    jobs: Sequence[AllocationJob], fair: Mapping[str, float], caps: Mapping[str, int], free: int
) -> dict[str, int]:
    options: dict[str, list[Option]] = {}
    for job in jobs:
        possible = {job.workers}
        if not job.fixed:
            most = min(caps[job.key], job.maximum)
            possible |= {int(c.value) for c in job.choices if job.minimum <= c.value <= most}
        gains = [(size, speedup(job, size, fair[job.key])) for size in sorted(possible)]
        losses = [(size, 1 / gain) for size, gain in gains if gain] or [(job.workers, 0.0)]
        options[job.key] = [Option(size, size * job.devices, loss) for size, loss in losses]
    chosen = divide(options, sum(job.used for job in jobs) + free)
    return {job.key: chosen[job.key].workers if chosen else job.workers for job in jobs}


def _misplaced(
    jobs: Sequence[AllocationJob],
    sizes: Mapping[str, int],
    free: Mapping[str, int],
    fair: Mapping[str, float],
) -> dict[str, int]:
    """The largest size that can be placed, of each job whose new size cannot."""

    def gain(job: AllocationJob) -> float:
        before = speedup(job, job.workers, fair[job.key])
        after = speedup(job, sizes[job.key], fair[job.key])
        if not before or not after:
            return 0.0
        return (1 / before - 1 / after) / ((sizes[job.key] - job.workers) * job.devices)

    left = _after_shrinks(free, jobs, sizes)
    growing = [job for job in jobs if sizes[job.key] > job.workers]
    refused = {}
    for job in sorted(growing, key=gain, reverse=True):
        pods = sizes[job.key] - job.workers
        fitting = min(pods, sum(devices // job.devices for devices in left.values() if devices > 0))
        if fitting < pods:
            refused[job.key] = job.workers + fitting
        rest = placed(left, job.devices, fitting)
        left = left if rest is None else rest
    return refused


def _refused(jobs: Sequence[AllocationJob], sizes: Mapping[str, int]) -> float:
    """Goodput of each worker of the next larger size, relative to those that the job has."""
    best = 0.0
    for job in jobs:
        size = sizes[job.key]
        now = goodput_of(job, size)
        for choice in job.choices:
            if size < choice.value <= job.maximum and now and size:
                best = max(best, (choice.goodput - now) / (choice.value - size) / (now / size))
    return min(best, 1.0)


class PriceState(msgspec.Struct, frozen=True, kw_only=True):
    """The price, and since when devices are idle."""

    price: float = 0.0
    at_ms: int | None = None
    idle_since_ms: int | None = None
    """None: all devices are used, or other gangs need the free ones."""


def update_price(state: PriceState, refused: float, idle_devices: int, now_ms: int) -> PriceState:
    """Return the price after an observation.

    Args:
        refused: gain of the best refused worker, 0 to 1.
        idle_devices: free devices that no pending pod can use.
    """
    idle_since = None
    if idle_devices > 0:
        idle_since = now_ms if state.idle_since_ms is None else state.idle_since_ms
    if idle_since is not None and now_ms - idle_since >= IDLE_S * 1000:
        return PriceState(price=0.0, at_ms=now_ms, idle_since_ms=idle_since)
    elapsed_s = 0.0 if state.at_ms is None else max(now_ms - state.at_ms, 0) / 1000
    keep = math.exp(-elapsed_s / SMOOTHING_S) if state.at_ms is not None else 0.0
    price = keep * state.price + (1 - keep) * min(max(refused, 0.0), 1.0)
    return PriceState(price=price, at_ms=now_ms, idle_since_ms=idle_since)


def give_back(
    jobs: Sequence[AllocationJob], free: Mapping[str, int], gang: EntitledGang
) -> dict[str, int] | None:
    """Return the smaller numbers of workers by job that let the gang start.

    Returns:
        An empty dict if it fits without; None if no shrink of these jobs lets it start.
    """
    if placed(free, gang.unit, gang.pods) is not None:
        return {}
    options = {job.key: _shrinks(job) for job in jobs}
    owned = sum(job.used for job in jobs)
    least = sum(min(option.devices for option in sizes) for sizes in options.values())
    # Devices on other nodes may not help, so more is given back until the pods have nodes.
    for needed in range(max(gang.devices - sum(free.values()), 1), owned - least + 1):
        chosen = divide(options, owned - needed)
        if chosen is None:
            return None
        sizes = {key: option.workers for key, option in chosen.items()}
        if placed(_after_shrinks(free, jobs, sizes), gang.unit, gang.pods) is not None:
            return {job.key: sizes[job.key] for job in jobs if sizes[job.key] < job.workers}
    return None


def lost_share(job: AllocationJob, workers: int) -> float:
    now, then = goodput_of(job, job.workers), goodput_of(job, workers)
    return 0.0 if not now or then is None else max(1 - then / now, 0.0)


def _shrinks(job: AllocationJob) -> list[Option]:
    """The sizes down to the least one, and what is lost with each."""
    shrinks = [Option(job.workers, job.used, 0.0)]
    if job.fixed or goodput_of(job, job.workers) is None:
        return shrinks
    # Fewer shrinks with the same loss are better: each restarts a job.
    cost = job.cost_s / max(job.rest_s, job.cost_s)
    for choice in reversed(job.choices):
        size = int(choice.value)
        if max(job.minimum, 1) <= size < job.workers:
            shrinks.append(Option(size, size * job.devices, lost_share(job, size) + cost))
    return shrinks


def allocation_advice(
    jobs: Sequence[AllocationJob], allocation: Allocation, price: float
) -> dict[str, Advice]:
    advice = {}
    for job in jobs:
        size, fair = allocation.sizes[job.key], allocation.fair[job.key]
        if size == job.workers:
            continue
        there, reference = goodput_of(job, size), _fair_goodput(job, fair)
        reason = because(
            "SpareDevices" if size > job.workers else "OthersGainMore",
            devices=size * job.devices,
            speedup=there / reference if there and reference else 1.0,
            fair=round(fair * job.devices),
            price=price,
        )
        advice[job.key] = _advice(job, size, reason, urgent=False)
    return advice


def give_back_advice(
    jobs: Sequence[AllocationJob], sizes: Mapping[str, int], gang: EntitledGang
) -> dict[str, Advice]:
    advice = {}
    for job in jobs:
        if job.key not in sizes:
            continue
        reason = because(
            "GiveBack",
            gang=gang.key,
            needed=gang.devices,
            devices=(job.workers - sizes[job.key]) * job.devices,
            loss=lost_share(job, sizes[job.key]),
        )
        advice[job.key] = _advice(job, sizes[job.key], reason, urgent=True)
    return advice


def _advice(job: AllocationJob, workers: int, reason: Reason, *, urgent: bool) -> Advice:
    now = goodput_of(job, job.workers) or 1.0
    low, high = sorted((job.workers, workers))
    choices = tuple(
        Choice(
            value=choice.value,
            goodput=choice.goodput / now,
            low=choice.low / now,
            high=choice.high / now,
        )
        for choice in job.choices
        if low <= choice.value <= high
    )
    there = next((choice for choice in choices if choice.value == workers), None)
    size = 1.0 if workers > job.workers else workers / job.workers
    return Advice(
        what=What.WORKERS,
        role="worker",
        was=job.workers,
        value=workers,
        reason=reason,
        gain=(there.goodput if there else 1.0) / size - 1,
        gain_low=(there.low if there else 1.0) / size - 1,
        urgent=urgent,
        choices=choices,
    )
