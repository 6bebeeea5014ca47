"""Classifies failures of ElasticJob pods: replaced or not, and whether the node is to blame.

The basis is the table of causes (``api.failure``) and the exit codes of DLRover's agents. The rules
differ from DLRover's, and are the same for every strategy:

- a failure caused by the cluster (eviction, preemption, lost node) never counts;
- a failed program is restarted only if that can help, or if the restart policy always restarts;
- a pod that ran out of memory gets twice as much, within the job's ``resourceLimits``;
- nodes with failures are avoided: preferably after two failures, strictly after two failures that
  the node caused.
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gangline.api import failure
from gangline.api.core import pod
from gangline.api.failure import Blame, Remedy
from gangline.api.jobs.elastic import NodeFaults
from gangline.operator.model.replicas import ObservedPod

HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Exit codes with which agents report a broken node."""
OUT_OF_MEMORY_EXIT_CODE = 247
"""Exit code with which agents report a process that was killed because memory ran out."""
OUT_OF_MEMORY = "OutOfMemory"

AVOID_AFTER_FAILURES = 2


@dataclass(frozen=True, slots=True)
class PodFailure:
    """The classification of a pod's failure."""

    counts_as_restart: bool
    """The failure counts against the restart budget of the rank."""
    is_permanent: bool
    """A restart cannot help."""
    out_of_memory: bool
    is_node_fault: bool
    """The node caused the failure, and it was no eviction."""


def classify_pod_failure(failed: ObservedPod, container: str) -> PodFailure:
    complete = msgspec.convert(msgspec.to_builtins(failed), pod.Pod)
    found = failure.failure_of_pod(complete, container)
    if found is None:
        return PodFailure(False, False, False, False)
    # The exit code of a container whose node stopped is made up.
    code = None if found.cause == failure.NODE_LOST else found.exit_code
    broken = code in HARDWARE_EXIT_CODES
    starved = found.cause == OUT_OF_MEMORY or code == OUT_OF_MEMORY_EXIT_CODE
    return PodFailure(
        counts_as_restart=code is not None or found.remedy is Remedy.STOP,
        is_permanent=found.remedy is Remedy.STOP and not broken and not starved,
        out_of_memory=starved,
        is_node_fault=broken or (code is not None and found.blame is Blame.NODE),
    )


def count_node_failure(faults: NodeFaults | None, ended: PodFailure) -> NodeFaults:
    known = faults or NodeFaults()
    return replace(known, failures=known.failures + 1, faults=known.faults + ended.is_node_fault)


def nodes_to_exclude(faults: dict[str, NodeFaults]) -> list[str]:
    return sorted(name for name, found in faults.items() if found.faults >= AVOID_AFTER_FAILURES)


def nodes_to_avoid(faults: dict[str, NodeFaults]) -> list[str]:
    """List the nodes that pods should avoid if others are available."""
    return sorted(
        name
        for name, found in faults.items()
        if found.faults < AVOID_AFTER_FAILURES
        and (found.faults or found.failures >= AVOID_AFTER_FAILURES)
    )
