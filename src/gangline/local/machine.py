"""The resources of this machine, and their division among virtual nodes."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gangline.api.quantity import QuantityError, parse_whole
from gangline.local.directory import ClusterError
from gangline.local.settings import ClusterSettings

GPU_DEVICE = re.compile(r"nvidia(\d+)")
MIN_NODE_MEMORY = 64 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of the machine that this process may use."""

    cpu_milli: int
    memory_bytes: int
    gpus: tuple[int, ...]
    """Indices of the GPUs."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The size of one virtual node."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[int, ...]
    """Indices of its GPUs; indices beyond those of the machine are simulated GPUs."""

    pods: int


def detect_machine() -> Machine:
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpus * 1000, min(memory, _memory_limit() or memory), _gpus())


def _gpus() -> tuple[int, ...]:
    found = (GPU_DEVICE.fullmatch(path.name) for path in Path("/dev").glob("nvidia*"))
    return tuple(sorted(int(match[1]) for match in found if match))


def _memory_limit() -> int | None:
    """The memory limit of the container in which this process itself may run."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / name).read_text())
        except (OSError, ValueError):
            continue
    return None


def divide_machine(settings: ClusterSettings, machine: Machine) -> list[NodeShape]:
    """Divide a machine among the nodes of a cluster.

    Raises:
        ClusterError: a number is out of range.
    """
    count = settings.nodes
    if not 1 <= count <= 1000:
        raise ClusterError(f"--nodes {count}: give a number from 1 to 1000")
    if settings.cpus is not None and not 0 < settings.cpus < math.inf:
        raise ClusterError(
            f"--cpus {settings.cpus}: a node needs a share of a CPU; give a number such as 4"
        )
    if settings.gpus is not None and settings.gpus < 0:
        raise ClusterError(f"--gpus {settings.gpus}: give 0 or more")
    cpu = machine.cpu_milli // count if settings.cpus is None else round(settings.cpus * 1000)
    memory = _memory(settings) or machine.memory_bytes // count
    each = len(machine.gpus) // count if settings.gpus is None else settings.gpus
    if memory < MIN_NODE_MEMORY:
        raise ClusterError(f"{memory} bytes of memory for each node are not enough: give --memory")
    indices = (*machine.gpus, *range(len(machine.gpus), count * each))
    return [
        NodeShape(
            name=f"node-{number + 1}",
            cpu_milli=cpu,
            memory_bytes=memory,
            gpus=tuple(indices[number * each : (number + 1) * each]),
            pods=settings.pods,
        )
        for number in range(count)
    ]


def _memory(settings: ClusterSettings) -> int:
    if settings.memory is None:
        return 0
    try:
        return parse_whole(settings.memory)
    except QuantityError as error:
        raise ClusterError(f"--memory {settings.memory}: {error}") from error
