"""Builders of scheduler values for tests: nodes, pods and gangs."""

from datetime import timedelta

from gangline.api.scheduling import DEFAULT_QUEUE
from gangline.scheduler import decide as centre
from gangline.scheduler.model import (
    EPOCH,
    Constraints,
    Decision,
    GroupFacts,
    GroupKey,
    NodeFacts,
    NodeName,
    PodFacts,
    PodKey,
    QueueFacts,
    Request,
    Taint,
    shape_of,
)
from gangline.scheduler.nodes import DEFAULT_WEIGHTS, NodeTable
from gangline.scheduler.plugins.node_scores import Weights
from gangline.scheduler.simulate.check import check
from gangline.scheduler.state import ClusterState

GIB = 2**30
ANYWHERE = Constraints()
GPU = "nvidia.com/gpu"


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
    taints: tuple[Taint, ...] = (),
    **facts: bool,
) -> NodeFacts:
    return NodeFacts(
        name=NodeName(name),
        allocatable=request(cpu, memory, gpu, pods),
        labels=tuple(sorted((labels or {}).items())),
        taints=taints,
        **facts,
    )


def _port(number: int) -> Request:
    return ((f"hostport:tcp:{number}", 1),) if number else ()


def pod(
    name: str,
    cpu: float = 1,
    memory: float = 0,
    gpu: int = 0,
    group: str | None = None,
    on: str | None = None,
    age: int = 0,
    constraints: Constraints = ANYWHERE,
    port: int = 0,
    **facts: object,
) -> PodFacts:
    """Make a pod of namespace ``d``; ``age`` counts seconds from the epoch."""
    return PodFacts(
        key=PodKey(f"d/{name}"),
        uid=f"uid-{name}",
        shape=shape_of((*request(cpu, memory, gpu), *_port(port)), constraints),
        created=EPOCH + timedelta(seconds=age),
        group=GroupKey(f"d/{group}") if group else None,
        node=NodeName(on) if on else None,
        **{"phase": "Running" if on else "Pending", **facts},  # type: ignore[arg-type]
    )


def group(name: str, minimum: int = 0, age: int = 0, **facts: object) -> GroupFacts:
    return GroupFacts(
        key=GroupKey(f"d/{name}"),
        min_member=minimum,
        created=EPOCH + timedelta(seconds=age),
        **facts,  # type: ignore[arg-type]
    )


def gang(name: str, size: int, age: int = 0, **pod_facts: object) -> list[PodFacts | GroupFacts]:
    """Make a group and its pods, all of which must start together."""
    members = [
        pod(f"{name}-worker-{index}", group=name, age=age, **pod_facts)  # type: ignore[arg-type]
        for index in range(size)
    ]
    return [group(name, size, age), *members]


def cluster(
    *things: NodeFacts | PodFacts | GroupFacts | QueueFacts, weights: Weights = DEFAULT_WEIGHTS
) -> ClusterState:
    """Make a state out of facts, in the order given, with the default queue."""
    state = ClusterState(weights)
    state.queues[DEFAULT_QUEUE] = QueueFacts(DEFAULT_QUEUE)
    for thing in things:
        match thing:
            case NodeFacts():
                state.set_node(thing)
            case PodFacts():
                state.set_pod(thing)
            case GroupFacts():
                state.set_group(thing)
            case QueueFacts():
                state.queues[thing.name] = thing
    return state


def change_node(
    table: NodeTable, left: dict[NodeName, NodeFacts], change: NodeFacts | NodeName
) -> None:
    """Set a node, or remove the one of that name, in the table and among those that are left."""
    if isinstance(change, NodeFacts):
        table.set(change)
        left[change.name] = change
    else:
        table.remove(change)
        left.pop(change, None)


def on_label(**labels: str) -> Constraints:
    return Constraints(selector=tuple(sorted(labels.items())))


def decide(state: ClusterState, now: float = 0.0) -> Decision:
    return centre.decide(state, now)


def judged(state: ClusterState, now: float = 0.0) -> Decision:
    """Run a cycle and check its result with the oracle."""
    decision = centre.decide(state, now)
    check(state, decision, now)
    return decision
