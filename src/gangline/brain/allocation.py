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
guard decides about the advice as about any other. It replaces that of the single jobs, which do not
know of each other. While a gang waits, no job grows: the scheduler may hold free devices for that
gang. A gang with reserved resources of its queue (``Inqueue``) has a right to start.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.api.quantity import QuantityError
from gangline.api.resource_list import GPU, parse_resource
from gangline.api.volcano.scheduling import PodGroup
from gangline.brain.advisers.advice import Advice, Choice, Reason, Verdict, What, because
from gangline.brain.advisers.memory import role_size
from gangline.brain.advisers.workers import best_size, floor_of, worker_advice
from gangline.brain.facts.records import NodeCapacity, Run
from gangline.brain.guard.policy import GuardJobState

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
    sizes, goodputs = zip(*((choice.value, choice.goodput) for choice in job.choices), strict=True)
    return float(np.interp(workers, sizes, goodputs))


class Option(NamedTuple):
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
        devices = entitlements.get(queue, 0.0)
        # The devices of each job at which the shares add up to those of the queue, by bisection.
        low, high = 0.0, float(max(job.maximum * job.devices for job in members))
        for _ in range(_LEVELS):
            middle = (low + high) / 2
            is_more = sum(_share(job, middle) for job in members) > devices
            low, high = (low, middle) if is_more else (middle, high)
        fair |= {job.key: _share(job, low) / job.devices for job in members}
    return fair


def _share(job: AllocationJob, level: float) -> float:
    return float(min(max(level, job.minimum * job.devices), job.maximum * job.devices))


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
        left = placed(left, job.devices, fitting) or left
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
    former_ms = -math.inf if state.at_ms is None else state.at_ms
    keep = math.exp(-max(now_ms - former_ms, 0) / 1000 / SMOOTHING_S)
    price = keep * state.price + (1 - keep) * min(max(refused, 0.0), 1.0)
    if idle_since is not None and now_ms - idle_since >= IDLE_S * 1000:
        price = 0.0
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
        if size != job.workers:
            there, reference = goodput_of(job, size), _fair_goodput(job, fair)
            reason = because(
                "SpareDevices" if size > job.workers else "OthersGainMore",
                devices=size * job.devices,
                speedup=there / reference if there and reference else 1.0,
                fair=round(fair * job.devices),
                price=price,
            )
            advice[job.key] = _advice(job, size, reason)
    return advice


def give_back_advice(
    jobs: Sequence[AllocationJob], sizes: Mapping[str, int], gang: EntitledGang
) -> dict[str, Advice]:
    advice = {}
    for job in jobs:
        if (size := sizes.get(job.key, job.workers)) != job.workers:
            reason = because(
                "GiveBack",
                gang=gang.key,
                needed=gang.devices,
                devices=(job.workers - size) * job.devices,
                loss=lost_share(job, size),
            )
            advice[job.key] = _advice(job, size, reason, urgent=True)
    return advice


def _advice(job: AllocationJob, workers: int, reason: Reason, *, urgent: bool = False) -> Advice:
    now = goodput_of(job, job.workers) or 1.0
    choices = [
        Choice(value=one.value, goodput=one.goodput / now, low=one.low / now, high=one.high / now)
        for one in job.choices
    ]
    # A size that was cut to what can be placed may be none of them.
    unknown = Choice(value=workers, goodput=1.0, low=1.0, high=1.0)
    there = next((choice for choice in choices if choice.value == workers), unknown)
    return worker_advice(job.workers, there, choices, reason, urgent=urgent)


_INQUEUE, _PENDING = "Inqueue", "Pending"
WAITING_S = 30.0
"""Each gang waits while it is scheduled. From this time on it is short of devices."""


class ClusterRound(msgspec.Struct, frozen=True, kw_only=True):
    advice: dict[str, Advice] = {}
    """By uid of the job."""
    considered: frozenset[str] = frozenset()
    """Jobs whose size the round has decided, also where it stays."""
    price: PriceState = PriceState()


def cluster_round(
    jobs: Sequence[AllocationJob],
    nodes: Sequence[NodeCapacity],
    groups: Iterable[PodGroup],
    entitlements: Mapping[str, float],
    price: PriceState,
    now_ms: int,
) -> ClusterRound:
    pending = [group for group in groups if group.status.phase in (_INQUEUE, _PENDING)]
    # Where it is not known how many devices a gang needs, it may need some.
    waiting = [group for group in pending if _needed_devices(group) != 0]
    free = {node.name: node.gpus_free for node in nodes}
    advice: dict[str, Advice] = {}
    if waiting:
        created = [group.metadata.creation_timestamp for group in waiting]
        if any(at is None or now_ms / 1000 - at.timestamp() >= WAITING_S for at in created):
            price = update_price(price, 1.0, 0, now_ms)
        gang = _first_entitled(waiting)
        if gang is not None and (sizes := give_back(jobs, free, gang)):
            advice = give_back_advice(jobs, sizes, gang)
    else:
        allocation = allocate(jobs, free, entitlements)
        price = update_price(price, allocation.refused, sum(free.values()), now_ms)
        advice = allocation_advice(jobs, allocation, price.price)
    return ClusterRound(advice=advice, considered=frozenset(job.key for job in jobs), price=price)


def queue_entitlements(
    weights: Mapping[str, int], devices: int, fixed: Mapping[str, float]
) -> dict[str, float]:
    """Return the devices of each queue for its elastic jobs.

    Args:
        fixed: devices of the jobs of each queue that the Brain may not resize.
    """
    total = sum(weights.values())
    return {
        queue: max(devices * weight / total - fixed.get(queue, 0.0), 0.0)
        for queue, weight in weights.items()
        if total > 0
    }


def allocation_job(
    run: Run, choices: tuple[Choice, ...], state: GuardJobState
) -> AllocationJob | None:
    """Return what the allocation needs of a job that lets the Brain change its workers.

    None if it uses no devices, or its ``choices`` are not known: the goodput of its possible sizes,
    as the model predicts it.
    """
    job = run.job
    worker = role_size(job, "worker")
    present = next((choice for choice in choices if choice.goodput == 1.0), None)
    if worker is None or worker.gpus < 1 or present is None or len(choices) < 2:
        return None
    # Idle devices are no reason for workers that gain next to nothing.
    most = max(best_size(choices, present.value, floor_of(0.0)).value, present.value)
    running = sorted((pod.rank, pod.node) for pod in run.pods if pod.ended_ms is None)
    pending = any(action.verdict is Verdict.PENDING for action in state.actions)
    return AllocationJob(
        key=job.uid,
        workers=int(present.value),
        devices=worker.gpus,
        minimum=job.workers_min or 1,
        maximum=int(most),
        choices=choices,
        queue=job.queue,
        rest_s=float("inf") if state.remaining_s is None else max(state.remaining_s, 1.0),
        cost_s=state.change_cost_s,
        fixed=state.plan_open or pending or state.failing,
        nodes=tuple(node for _, node in running),
    )


def with_allocation(result: ClusterRound, uid: str, advice: Sequence[Advice]) -> list[Advice]:
    """Return the advice of a job with the round's instead of its own on workers.

    A trial to learn stays: the round knows no sizes that were never run.
    """
    if uid not in result.considered:
        return list(advice)
    probe = next((item for item in advice if item.what is What.WORKERS and item.probe), None)
    rest = [item for item in advice if item.what is not What.WORKERS]
    given = result.advice.get(uid)
    chosen = given if given is not None and given.urgent else probe or given
    return [*rest, chosen] if chosen is not None else rest


def _needed_devices(group: PodGroup) -> int | None:
    """Devices that a gang asks for; None if they are not known."""
    needed = group.spec.min_resources
    try:
        return parse_resource(GPU, needed.get(GPU) or 0) if needed else None
    except QuantityError:
        return None


def _first_entitled(waiting: Sequence[PodGroup]) -> EntitledGang | None:
    """The oldest gang with reserved resources whose devices are known."""
    entitled = [group for group in waiting if group.status.phase == _INQUEUE]
    entitled.sort(key=lambda group: (str(group.metadata.creation_timestamp), group.metadata.name))
    for group in entitled:
        pods, devices = group.spec.min_member, _needed_devices(group) or 0
        if pods > 0 and devices >= pods and devices % pods == 0:
            key = f"{group.metadata.namespace}/{group.metadata.name}"
            return EntitledGang(key=key, pods=pods, unit=devices // pods)
    return None
