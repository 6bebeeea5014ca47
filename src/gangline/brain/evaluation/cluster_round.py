"""The sizes of all opted-in elastic jobs together, and the price of a device. Pure.

Its advice replaces that of the single jobs, which do not know of each other. While a gang waits, no
job grows: the scheduler may hold free devices for that gang. A gang with reserved resources
of its queue (``Inqueue``) has a right to start, and elastic jobs give devices back for it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gangline.api.quantity import QuantityError
from gangline.api.resource_list import GPU, parse_resource
from gangline.api.volcano.scheduling import PodGroup
from gangline.brain.advisers.advice import Advice, Choice, Verdict, What
from gangline.brain.advisers.workers import best_size, floor_of
from gangline.brain.allocation import (
    AllocationJob,
    EntitledGang,
    PriceState,
    allocate,
    allocation_advice,
    give_back,
    give_back_advice,
    update_price,
)
from gangline.brain.facts.records import NodeCapacity, Run
from gangline.brain.guard.state import GuardJobState

_INQUEUE, _PENDING = "Inqueue", "Pending"
WAITING_S = 30.0
"""Each gang waits while it is scheduled. From this time on it is short of devices."""


class RoundMember(msgspec.Struct, frozen=True, kw_only=True):
    """A running elastic job whose policy and wish let the Brain change its workers."""

    run: Run
    choices: tuple[Choice, ...]
    """Goodput of its possible sizes, as the model predicts it."""
    state: GuardJobState


class ClusterRound(msgspec.Struct, frozen=True, kw_only=True):
    advice: dict[str, Advice] = {}
    """By uid of the job."""
    considered: frozenset[str] = frozenset()
    """Jobs whose size the round has decided, also where it stays."""
    price: PriceState = PriceState()


def cluster_round(
    members: Sequence[RoundMember],
    nodes: Sequence[NodeCapacity],
    groups: Iterable[PodGroup],
    entitlements: Mapping[str, float],
    price: PriceState,
    now_ms: int,
) -> ClusterRound:
    jobs = [job for member in members if (job := allocation_job(member)) is not None]
    waiting = [group for group in groups if _waits_for_devices(group)]
    free = {node.name: node.gpus_free for node in nodes}
    advice: dict[str, Advice] = {}
    if waiting:
        created = [group.metadata.creation_timestamp for group in waiting]
        if any(at is None or now_ms / 1000 - at.timestamp() >= WAITING_S for at in created):
            price = update_price(price, 1.0, 0, now_ms)
        gang = _first_entitled(waiting)
        sizes = give_back(jobs, free, gang) if gang is not None else None
        if sizes and gang is not None:
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


def allocation_job(member: RoundMember) -> AllocationJob | None:
    """Return what the allocation needs of a job; None if it uses no devices or has no sizes."""
    job, state = member.run.job, member.state
    worker = next((size for size in reversed(job.roles) if size.role == "worker"), None)
    present = next((choice for choice in member.choices if choice.goodput == 1.0), None)
    if worker is None or worker.gpus < 1 or present is None or len(member.choices) < 2:
        return None
    # Idle devices are no reason for workers that gain next to nothing.
    most = max(best_size(member.choices, present.value, floor_of(0.0)).value, present.value)
    running = sorted((pod.rank, pod.node) for pod in member.run.pods if pod.ended_ms is None)
    pending = any(action.verdict is Verdict.PENDING for action in state.actions)
    return AllocationJob(
        key=job.uid,
        workers=int(present.value),
        devices=worker.gpus,
        minimum=job.workers_min or 1,
        maximum=int(most),
        choices=member.choices,
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
    if given is not None and (given.urgent or probe is None):
        return [*rest, given]
    return [*rest, probe] if probe is not None else rest


def _waits_for_devices(group: PodGroup) -> bool:
    """Return whether a gang waits and needs devices, or may need them."""
    if group.status.phase not in (_INQUEUE, _PENDING):
        return False
    needed = group.spec.min_resources
    try:
        return not needed or parse_resource(GPU, needed.get(GPU) or 0) > 0
    except QuantityError:
        return True


def _first_entitled(waiting: Sequence[PodGroup]) -> EntitledGang | None:
    """The oldest gang with reserved resources whose devices are known."""
    entitled = [group for group in waiting if group.status.phase == _INQUEUE]
    entitled.sort(key=lambda group: (str(group.metadata.creation_timestamp), group.metadata.name))
    for group in entitled:
        pods = group.spec.min_member
        try:
            devices = parse_resource(GPU, (group.spec.min_resources or {}).get(GPU) or 0)
        except QuantityError:
            continue
        if pods > 0 and devices >= pods and devices % pods == 0:
            key = f"{group.metadata.namespace}/{group.metadata.name}"
            return EntitledGang(key=key, pods=pods, unit=devices // pods)
    return None
