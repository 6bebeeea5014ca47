"""Results of a test round, and the conclusion of a check."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

COMPUTE, COLLECTIVE = "compute", "collective"
"""What is timed."""

NodeGroup = tuple[int, ...]
"""Nodes that test together."""


class NodeResult(msgspec.Struct, frozen=True, tag="measured", omit_defaults=True):
    """Result of one round: of a node, or of one of its worker processes."""

    passed: bool
    local: bool = False
    """True if the failed test ran within this node, so that no partner can be the cause."""
    compute_s: float = 0.0
    """Seconds of the matrix multiplications."""
    collective_s: float = 0.0
    """Mean seconds of one collective operation."""
    bandwidth: float = 0.0
    """Bytes per second, as the algorithm counts them."""
    device: str = ""
    test: str = ""
    """Name of the failed test."""
    message: str = ""
    collective_device: str = ""
    """Slowest device of the collective; ``device`` is the slowest one of the matrices."""

    def seconds_of(self, test: str) -> float:
        return self.collective_s if test == COLLECTIVE else self.compute_s

    def device_of(self, test: str) -> str:
        return self.collective_device if test == COLLECTIVE else self.device


LOST_RESULT = NodeResult(
    passed=False, local=True, test="presence", message="the node did not report in time"
)
"""Result of a node that did not report. Failures of its partners prove nothing."""


@dataclass(frozen=True, slots=True)
class CheckRound:
    """One finished round."""

    groups: tuple[NodeGroup, ...]
    results: Mapping[int, NodeResult]
    """Results by node; a missing node of a group counts as lost."""

    def result(self, node: int) -> NodeResult:
        return self.results.get(node, LOST_RESULT)

    def passed(self, group: NodeGroup) -> bool:
        return all(self.result(node).passed for node in group)


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What is wrong with a node."""

    node: int
    test: str
    device: str = ""
    value: float = 0.0
    """Seconds, or the number of failures."""
    threshold: float = 0.0
    """Limit of the value."""
    message: str = ""

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        reason = f": {self.message}" if self.message else ""
        return (
            f"node {self.node} failed {self.test}{where} "
            f"({self.value:.4g}, limit {self.threshold:.4g}){reason}"
        )


@dataclass(frozen=True, slots=True)
class CheckConclusion:
    """Conclusion of a check."""

    faulty: Mapping[int, NodeFinding] = field(default_factory=dict)
    """Nodes that are proved faulty."""
    stragglers: Mapping[int, NodeFinding] = field(default_factory=dict)
    """Nodes that pass, but are slow."""
    undecided: tuple[int, ...] = ()
    """Nodes that failed only with nodes that are not proved healthy: either may be the cause."""
    rounds: int = 0

    def passed(self, node: int) -> bool:
        return node not in self.faulty and node not in self.undecided


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of a check for one node."""

    passed: bool
    factor: float | None = None
    """Its best time of the matrix test over the median of all nodes; None if it has none."""


def check_outcomes(
    nodes: Iterable[int], rounds: Sequence[CheckRound], conclusion: CheckConclusion
) -> dict[int, CheckOutcome]:
    """Return the outcome of every node of a check."""
    times: dict[int, float] = {}
    for round_ in rounds:
        for node, result in round_.results.items():
            if result.passed and result.compute_s > 0:
                times[node] = min(result.compute_s, times.get(node, result.compute_s))
    median = statistics.median(times.values()) if times else 0.0
    return {
        node: CheckOutcome(conclusion.passed(node), times[node] / median if node in times else None)
        for node in nodes
    }
