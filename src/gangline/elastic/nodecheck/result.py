"""Values of a node check: workload and orders, results, slow nodes, and the conclusion.

Slow nodes: each node is compared with the median of the *others*, so that one of two nodes can be
slow. Times of earlier checks of any node count among the others. So a job of one node, or one whose
nodes are all slow today, still has a comparison. The check's processes get these values as lines of
JSON, and import nothing else of the package.
"""

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from gangline.api.figures import format_figure

COMPUTE, COLLECTIVE = "compute", "collective"

NodeGroup = tuple[int, ...]
"""Nodes that test together."""
NodeTimes = tuple[float, float]
"""Seconds of the matrix product and of the collective."""
TimesHistory = Mapping[int, Sequence[NodeTimes]]
"""Times of earlier checks with the same sizes, by node."""
_TESTS = (COMPUTE, COLLECTIVE)


class NodeResult(msgspec.Struct, frozen=True, tag="measured", omit_defaults=True):
    """Result of one round: of a node, or of one of its worker processes."""

    passed: bool
    local: bool = False
    """True if the failed test ran within this node, so that no partner can be the cause."""
    compute_s: float = 0.0
    collective_s: float = 0.0
    bandwidth: float = 0.0
    """Bytes per second, as the algorithm counts them."""
    device: str = ""
    test: str = ""
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
    message: str = ""

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        reason = f": {self.message}" if self.message else ""
        return (
            f"node {self.node} failed {self.test}{where} "
            f"({format_figure(self.value, digits=4)}, limit "
            f"{format_figure(self.threshold, digits=4)}){reason}"
        )


@dataclass(frozen=True, slots=True)
class CheckConclusion:
    """Conclusion of a check."""

    faulty: Mapping[int, NodeFinding] = field(default_factory=dict)
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


def best_times(rounds: Sequence[CheckRound]) -> dict[int, NodeTimes]:
    """Return the best compute and collective times of each node that passed a round."""
    best: dict[int, NodeTimes] = {}
    for round_ in rounds:
        for node, result in round_.results.items():
            if result.passed:
                compute_s, collective_s = best.get(node, (result.compute_s, result.collective_s))
                best[node] = (
                    min(compute_s, result.compute_s),
                    min(collective_s, result.collective_s),
                )
    return best


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """When a node is a straggler."""

    ratio: float = 2.0
    """Multiple of the median of the others ..."""
    excess_s: float = 0.02
    """... and difference to that median that a straggler exceeds; less is noise."""
    absolute_s: float = 0.0
    """Time of either test that a node must not exceed; 0 for no limit."""


def find_slow_nodes(
    times: Mapping[int, NodeTimes], limits: SpeedLimits, history: TimesHistory
) -> dict[int, NodeFinding]:
    findings: dict[int, NodeFinding] = {}
    for index, test in enumerate(_TESTS):
        all_times = [seconds[index] for seconds in times.values()]
        all_times += [seconds[index] for past in history.values() for seconds in past]
        all_times.sort()
        for node, own in times.items():
            middle = _median_of_others(all_times, own[index])
            threshold = _threshold(middle, limits)
            if own[index] > threshold and node not in findings:
                findings[node] = NodeFinding(
                    node,
                    test,
                    value=own[index],
                    threshold=threshold,
                    message="slower than the limit" if middle is None else "slower than the others",
                )
    return findings


def _median_of_others(times: Sequence[float], own: float) -> float | None:
    """Return the median of sorted times without ``own``, which is one of them."""
    count = len(times) - 1
    if not count:
        return None
    place = bisect_left(times, own)
    low, high = ((count - 1) // 2, count // 2)
    return sum(times[i + (i >= place)] for i in (low, high)) / 2


def _threshold(middle: float | None, limits: SpeedLimits) -> float:
    bounds = [limits.absolute_s] if limits.absolute_s else []
    if middle is not None:
        bounds.append(max(middle * limits.ratio, middle + limits.excess_s))
    return min(bounds, default=float("inf"))


class CheckWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is tested. Zero means a default for the device."""

    backend: str = ""
    """``gloo`` or ``nccl``; empty for nccl if there is a GPU for each process, else gloo."""
    matrix_size: int = 0
    """Rows and columns of the matrices that are multiplied."""
    matrix_repeats: int = 0
    collective_bytes: int = 0
    """Size of one all-reduce in each process."""
    collective_repeats: int = 0
    timeout_s: float = 30.0
    """Time limit for partners, and for one test."""
    memory_limit: float = 0.3
    """Maximum share of a GPU's memory in use before the test; more means leftover processes."""


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a process."""

    workload: CheckWorkload
    local_rank: int
    local_world_size: int


class PortReport(msgspec.Struct, frozen=True, tag="listening"):
    """The first process of a node holds this port for the store of the next round."""

    port: int


class MeasureOrder(msgspec.Struct, frozen=True, kw_only=True, tag="test"):
    """Run the tests in this group."""

    rank: int
    world_size: int
    store_host: str
    store_port: int


WorkerMessage: TypeAlias = PortReport | NodeResult
