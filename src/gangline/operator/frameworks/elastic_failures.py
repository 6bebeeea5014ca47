"""What the failure of a pod of an ElasticJob means: made anew or not, and who is to blame.

By the one table of causes (``api.failure``), and by what DLRover's agents say through exit codes
of their own. Other than DLRover's, and the same under every strategy:

- what the cluster did to a pod (evicted, preempted, lost with its node) never counts;
- a program that failed is started again only if that can help, or if the restart policy says that
  it always shall;
- a pod that ran out of memory gets twice as much, as far as ``resourceLimits`` has room;
- a node of the cluster on which pods failed is avoided: rather not after two failures, never
  after two that the node is to blame for.
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gangline.api import failure, pod
from gangline.api.elastic import NodeFaults
from gangline.api.failure import Blame, Remedy
from gangline.operator.replicas import Pod

HARDWARE_CODES = frozenset({14, 201, 202})
"""Exit codes by which agents say that the node is broken."""
OUT_OF_MEMORY_CODE = 247
"""Exit code by which agents say that a process was killed for want of memory."""
OUT_OF_MEMORY = "OutOfMemory"

TWICE = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pod failed, as far as it matters for what follows."""

    counted: bool
    """It counts against the restarts that a rank has."""
    hopeless: bool
    """Starting again cannot help."""
    out_of_memory: bool
    nodes_fault: bool
    """The node is to blame, and it was no eviction."""


def ending(failed: Pod, container: str) -> Ending:
    """Read how a failed pod ended."""
    whole = msgspec.convert(msgspec.to_builtins(failed), pod.Pod)
    found = failure.of_pod(whole, container)
    if found is None:
        return Ending(False, False, False, False)
    code = found.exit_code
    broken = code in HARDWARE_CODES
    starved = found.cause == OUT_OF_MEMORY or code == OUT_OF_MEMORY_CODE
    return Ending(
        counted=code is not None or found.remedy is Remedy.STOP,
        hopeless=found.remedy is Remedy.STOP and not broken and not starved,
        out_of_memory=starved,
        nodes_fault=broken or (code is not None and found.blame is Blame.NODE),
    )


def blamed(faults: NodeFaults | None, ended: Ending) -> NodeFaults:
    """Count a failure on a node of the cluster."""
    known = faults or NodeFaults()
    return replace(known, failures=known.failures + 1, faults=known.faults + ended.nodes_fault)


def forbidden(faults: dict[str, NodeFaults]) -> list[str]:
    """Name the nodes that pods must not go to."""
    return sorted(name for name, found in faults.items() if found.faults >= TWICE)


def disliked(faults: dict[str, NodeFaults]) -> list[str]:
    """Name the nodes that pods should not go to if there is another."""
    return sorted(
        name
        for name, found in faults.items()
        if found.faults < TWICE and (found.faults or found.failures >= TWICE)
    )
