"""The cluster of a simulation: nodes of a few kinds, and queues, from YAML or JSON.

nodes:
  - {count: 100, cpu: 96, memory: 1Ti, gpu: 8, name: gpu, labels: {rack: r1}}
queues:
  - {name: team, weight: 2, parent: root, deserved: {cpu: 100}, dequeueStrategy: fifo}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from gangline.api.meta.objects import ObjectMeta
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import PODS
from gangline.api.volcano.scheduling import Queue, QueueSpec
from gangline.scheduler.cache.convert import queue_info
from gangline.scheduler.simulate.trace import TraceError, pod_request
from gangline.scheduler.types.types import NodeInfo, NodeName, QueueInfo

PODS_PER_NODE = 110


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Nodes and queues of a simulation."""

    nodes: tuple[NodeInfo, ...]
    queues: tuple[QueueInfo, ...] = ()


class _Nodes(msgspec.Struct, forbid_unknown_fields=True):
    count: int = 1
    cpu: str | int | float = 1
    memory: str | int | float = 0
    gpu: int = 0
    name: str = "node"
    labels: dict[str, str] = {}


class _Description(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[_Nodes]
    queues: list[dict[str, object]] = []


def read_cluster(path: Path) -> SimulatedCluster:
    """Read the description of a cluster.

    Raises:
        TraceError: the file cannot be parsed.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        described = msgspec.convert(raw, _Description)
        nodes = tuple(node for kind in described.nodes for node in _nodes(kind))
        queues = tuple(_queue(each) for each in described.queues)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, QuantityError) as error:
        raise TraceError(f"{path}: {error}") from error
    if len({node.name for node in nodes}) != len(nodes):
        raise TraceError(f"{path}: two kinds of nodes have one name")
    return SimulatedCluster(nodes, queues)


def uniform_cluster(count: int, cpu: float, memory: str, gpu: int) -> SimulatedCluster:
    return SimulatedCluster(tuple(_nodes(_Nodes(count, cpu, memory, gpu))))


def _nodes(kind: _Nodes) -> list[NodeInfo]:
    has = dict(pod_request(kind.cpu, kind.memory, kind.gpu)) | {PODS: PODS_PER_NODE}
    width = len(str(max(0, kind.count - 1)))
    return [
        NodeInfo(
            name=NodeName(f"{kind.name}-{index:0{width}d}"),
            allocatable=tuple(sorted(has.items())),
            labels=tuple(sorted(kind.labels.items())),
        )
        for index in range(kind.count)
    ]


def _queue(written: Mapping[str, object]) -> QueueInfo:
    spec = {key: value for key, value in written.items() if key != "name"}
    metadata = ObjectMeta(name=str(written.get("name", "")))
    return queue_info(Queue(metadata=metadata, spec=msgspec.convert(spec, QueueSpec)))
