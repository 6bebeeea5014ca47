"""Whether pods fit on the free devices of nodes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gangline.brain.allocation.jobs import AllocationJob, AllocationNode


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
        fitting = [each for each in fitting if each[1] >= unit]
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
