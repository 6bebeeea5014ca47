"""Builders of scheduler values for tests: nodes, pods and gangs."""

import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from gangline.api.meta.resource import Resource
from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.kube.client.client import ApiClient
from gangline.kube.client.decoding import decode_object
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS, NodeTable
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.plugins.volumes import ClaimInfo, VolumeInfo
from gangline.scheduler.types import (
    EPOCH,
    HOST_PORT_CAPACITY,
    CycleResult,
    GroupKey,
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Request,
    Reservation,
    TaintInfo,
    shape_of,
)
from unit.scheduler.oracle.check import check_result

GIB = 2**30
ANYWHERE = PlacementConstraints()
GPU = "nvidia.com/gpu"
DRIVER = "disk.example.com"
"""Storage driver of the volumes that ``give_volumes`` makes."""


def request(cpu: float = 0, memory: float = 0, gpu: int = 0, pods: int = 1) -> Request:
    amounts = {"cpu": round(cpu * 1000), "memory": round(memory * GIB), GPU: gpu, "pods": pods}
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def node(
    name: str,
    cpu: float = 8,
    memory: float = 32,
    gpu: int = 0,
    pods: int = 110,
    labels: dict[str, str] | None = None,
    taints: tuple[TaintInfo, ...] = (),
    **facts: bool,
) -> NodeInfo:
    return NodeInfo(
        name=NodeName(name),
        allocatable=request(cpu, memory, gpu, pods),
        labels=tuple(sorted((labels or {}).items())),
        taints=taints,
        **facts,
    )


def _port(number: int) -> Request:
    return ((f"hostport:tcp:{number}", HOST_PORT_CAPACITY),) if number else ()


def pod(
    name: str,
    cpu: float = 1,
    memory: float = 0,
    gpu: int = 0,
    group: str | None = None,
    on: str | None = None,
    age: int = 0,
    constraints: PlacementConstraints = ANYWHERE,
    port: int = 0,
    **facts: object,
) -> PodInfo:
    """Make a pod of namespace ``d``; ``age`` counts seconds from the epoch."""
    return PodInfo(
        key=PodKey(f"d/{name}"),
        uid=f"uid-{name}",
        shape=shape_of((*request(cpu, memory, gpu), *_port(port)), constraints),
        created=EPOCH + timedelta(seconds=age),
        group=GroupKey(f"d/{group}") if group else None,
        node=NodeName(on) if on else None,
        **{"phase": "Running" if on else "Pending", **facts},  # type: ignore[arg-type]
    )


def using(name: str, *claims: str, **facts: object) -> PodInfo:
    """Make a pod that uses volume claims of its namespace."""
    return pod(name, claims=tuple(f"d/{claim}" for claim in claims), **facts)  # type: ignore[arg-type]


def group(name: str, minimum: int = 0, age: int = 0, **facts: object) -> PodGroupInfo:
    return PodGroupInfo(
        key=GroupKey(f"d/{name}"),
        min_member=minimum,
        created=EPOCH + timedelta(seconds=age),
        **facts,  # type: ignore[arg-type]
    )


def gang(name: str, size: int, age: int = 0, **pod_facts: object) -> list[PodInfo | PodGroupInfo]:
    """Make a group and its pods, all of which must start together."""
    members = [
        pod(f"{name}-worker-{index}", group=name, age=age, **pod_facts)  # type: ignore[arg-type]
        for index in range(size)
    ]
    return [group(name, size, age), *members]


def cluster(
    *things: NodeInfo | PodInfo | PodGroupInfo | QueueInfo, weights: ScoreWeights = DEFAULT_WEIGHTS
) -> SchedulerCache:
    """Make a state out of facts, in the order given, with the default queue."""
    state = SchedulerCache(weights)
    state.queues[DEFAULT_QUEUE] = QueueInfo(DEFAULT_QUEUE)
    for thing in things:
        match thing:
            case NodeInfo():
                state.set_node(thing)
            case PodInfo():
                state.set_pod(thing)
            case PodGroupInfo():
                state.set_group(thing)
            case QueueInfo():
                state.queues[thing.name] = thing
    return state


def give_volumes(state: SchedulerCache, **limits: int) -> SchedulerCache:
    """Give every claim that a pod names a volume, and nodes their limits."""
    for claim in {claim for each in state.pods.values() for claim in each.claims}:
        state.storage.claims.setdefault(claim, ClaimInfo(claim, volume=f"pv-{claim}"))
        state.storage.volumes.setdefault(f"pv-{claim}", VolumeInfo(f"pv-{claim}", driver=DRIVER))
    for host, limit in limits.items():
        state.storage.limits[NodeName(host)] = {DRIVER: limit}
    state.storage.synced = True
    state.storage_changed()
    return state


def change_node(
    table: NodeTable, left: dict[NodeName, NodeInfo], change: NodeInfo | NodeName
) -> None:
    """Set a node, or remove the one of that name, in the table and among those that are left."""
    if isinstance(change, NodeInfo):
        table.set(change)
        left[change.name] = change
    else:
        table.remove(change)
        left.pop(change, None)


def on_label(**labels: str) -> PlacementConstraints:
    return PlacementConstraints(selector=tuple(sorted(labels.items())))


def decide(state: SchedulerCache, now: float = 0.0) -> CycleResult:
    return run_cycle(state, now)


def checked_cycle(state: SchedulerCache, now: float = 0.0) -> CycleResult:
    """Run a cycle and check its result with the oracle."""
    decision = run_cycle(state, now)
    check_result(state, decision, now)
    return decision


def placed(decision: CycleResult) -> dict[str, NodeName]:
    """Return the nodes of the bound pods of namespace ``d``."""
    return {binding.pod.removeprefix("d/"): binding.node for binding in decision.bindings}


def listing(**objects: list[dict[str, Any]]) -> ApiClient:
    """Make a client that only lists: these objects by the plural of their kind, else nothing."""

    async def list_(
        resource: Resource[Any], *, transform: Callable[[Any], Any] | None = None
    ) -> SimpleNamespace:
        raw = objects.get(resource.plural, [])
        read = [decode_object(resource.type, json.dumps(each).encode()) for each in raw]
        return SimpleNamespace(items=list(map(transform, read)) if transform else read)

    return cast(ApiClient, SimpleNamespace(list=list_))


class RecordingListener:
    """Records what informers report after changes of the cache."""

    def __init__(self) -> None:
        self.changes = 0
        self.groups: list[GroupKey] = []
        self.reservations: dict[GroupKey, Reservation] = {}
        self.delays: list[float] = []

    def on_change(self) -> None:
        self.changes += 1

    def on_group_changed(self, group: GroupKey) -> None:
        self.groups.append(group)

    def on_reservation_found(self, group: GroupKey, reservation: Reservation) -> None:
        self.reservations[group] = reservation

    def request_cycle_after(self, delay_s: float) -> None:
        self.delays.append(delay_s)
