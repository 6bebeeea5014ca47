"""The resources of this machine, and their division among virtual nodes."""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gangline.api.names import validate_label_key
from gangline.api.quantity import QuantityError, parse_whole
from gangline.api.resource_list import GPU, is_extended_resource
from gangline.local.directory import ClusterError
from gangline.local.kubelet.settings import VirtualNodeSpec
from gangline.local.settings import ClusterSettings

GPU_DEVICE = re.compile(r"nvidia(\d+)")
MIN_NODE_MEMORY = 64 << 20
VIRTUAL_LABEL = "gangline.dev/virtual"
"""The label of nodes that a cluster created itself and may delete again."""
MAX_COUNT_DIGITS = 15
"""Kubernetes' quantities are integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of the machine that this process may use."""

    cpu_milli: int
    memory_bytes: int
    gpus: tuple[int, ...]
    """Indices of the GPUs."""


def detect_machine() -> Machine:
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpus * 1000, min(memory, _memory_limit() or memory), _gpus())


def _gpus() -> tuple[int, ...]:
    devices = (GPU_DEVICE.fullmatch(path.name) for path in Path("/dev").glob("nvidia*"))
    return tuple(sorted(int(match[1]) for match in devices if match))


def _memory_limit() -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / name).read_text())
        except (OSError, ValueError):
            continue
    return None


def divide_machine(settings: ClusterSettings, machine: Machine) -> list[VirtualNodeSpec]:
    """Divide a machine among the nodes of a cluster. Raises ClusterError."""
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
    gpus = len(machine.gpus) // count if settings.gpus is None else settings.gpus
    if memory < MIN_NODE_MEMORY:
        raise ClusterError(f"{memory} bytes of memory for each node are not enough: give --memory")
    resources = parse_extended_resources(settings.resources)
    indices = (*machine.gpus, *range(len(machine.gpus), count * gpus))
    return [
        VirtualNodeSpec(
            name=f"node-{number + 1}",
            cpu_milli=cpu,
            memory_bytes=memory,
            gpus=tuple(indices[number * gpus : (number + 1) * gpus]),
            pods=settings.pods,
            resources=resources,
            labels={VIRTUAL_LABEL: "true"},
        )
        for number in range(count)
    ]


def parse_extended_resources(items: Iterable[str]) -> dict[str, int]:
    """Parse ``NAME=COUNT`` items. Raises ClusterError: one of them is no extended resource with a
    whole number.
    """
    amounts: dict[str, int] = {}
    for item in items:
        name, _, count = item.rpartition("=")
        if name == GPU:
            raise ClusterError(f"--resource {item}: use --gpus for this resource")
        if not is_extended_resource(name) or validate_label_key(name):
            raise ClusterError(
                f"--resource {item}: write NAME=COUNT, with a name such as tencent.com/vcuda-core "
                "in a domain other than kubernetes.io"
            )
        if not (count.isascii() and count.isdecimal()) or len(count) > MAX_COUNT_DIGITS:
            raise ClusterError(f"--resource {item}: the count must be a whole number such as 100")
        if name in amounts:
            raise ClusterError(f"--resource {item}: {name} is given twice")
        amounts[name] = int(count)
    return amounts


def _memory(settings: ClusterSettings) -> int:
    if settings.memory is None:
        return 0
    try:
        return parse_whole(settings.memory)
    except QuantityError as error:
        raise ClusterError(f"--memory {settings.memory}: {error}") from error
