"""What the nodes of a world report during one segment."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline.api.jobs.training_facts import SlowestNode
from gangline.elastic.protocol.messages import NodeReport

MAX_MODELS = 8
"""Number of device models that are told apart."""
_TIMES = ("compute_s", "sync_s", "data_s")


@dataclass(slots=True)
class NodeSums:
    """Reports of one node; times are weighted with the number of steps since the last report."""

    rank: int
    pod: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Sum of seconds times steps, by name."""
    steps: dict[str, int] = field(default_factory=dict)
    """Sum of the weights, by name."""
    last: NodeReport | None = None
    """The latest report."""
    peak_bytes: int = 0

    def add(self, report: NodeReport, steps: int) -> None:
        self.last, self.pod = report, report.pod or self.pod
        self.peak_bytes = max(self.peak_bytes, *report.device_peak_bytes, 0)
        for name in _TIMES:
            value = getattr(report, name)
            if value is not None:
                self.seconds[name] = self.seconds.get(name, 0.0) + value * steps
                self.steps[name] = self.steps.get(name, 0) + steps

    def mean_s(self, name: str) -> float | None:
        steps = self.steps.get(name)
        return self.seconds[name] / steps if steps else None


class WorldSums:
    """Reports of all nodes during one segment."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeSums] = {}

    def add(self, node: int, rank: int, report: NodeReport, steps: int) -> None:
        sums = self._nodes.get(node)
        if sums is None:
            sums = self._nodes[node] = NodeSums(rank)
        sums.add(report, max(1, steps))

    def mean_s(self, name: str) -> float | None:
        """Return the mean over the nodes; None if none reports it."""
        means = [node.mean_s(name) for node in self._nodes.values()]
        return _mean(value for value in means if value is not None)

    def mean_of_last(self, name: str) -> float | None:
        """Return the mean over the nodes of a value in their latest reports."""
        reports = [node.last for node in self._nodes.values() if node.last is not None]
        return _mean(value for report in reports if (value := getattr(report, name)) is not None)

    def device_models(self) -> list[str]:
        """List the models of all devices."""
        found = {node.last.device_model for node in self._nodes.values() if node.last is not None}
        return sorted(found - {""})[:MAX_MODELS]

    def devices_per_node(self) -> int | None:
        """Return the highest number of devices of a node; None if no device is reported."""
        counts = [
            len(node.last.device_peak_bytes)
            for node in self._nodes.values()
            if node.last is not None
        ]
        return max(counts, default=0) or None

    def peaks(self) -> dict[str, int]:
        """Return the highest device memory in use, by device model."""
        found: dict[str, int] = {}
        for node in self._nodes.values():
            model = node.last.device_model if node.last is not None else ""
            if node.peak_bytes and (model in found or len(found) < MAX_MODELS):
                found[model] = max(found.get(model, 0), node.peak_bytes)
        return found

    def device_memory(self) -> dict[str, int]:
        """Return the memory of the smallest device of each model, where it is reported."""
        found: dict[str, int] = {}
        for node in self._nodes.values():
            report = node.last
            if report is None or not report.device_memory_bytes:
                continue
            model = report.device_model
            if model in found or len(found) < MAX_MODELS:
                memory = report.device_memory_bytes
                found[model] = min(found.get(model, memory), memory)
        return found

    def maximum_of_last(self, name: str) -> float | None:
        """Return the maximum over the nodes of a value in their latest reports."""
        reports = [node.last for node in self._nodes.values() if node.last is not None]
        known = [value for report in reports if (value := getattr(report, name)) is not None]
        return max(known, default=None)

    def slowest(self) -> SlowestNode | None:
        """Return the node with the highest compute time; None with fewer than two nodes."""
        times = [
            (seconds, node) for node in self._nodes.values() if (seconds := node.mean_s(_TIMES[0]))
        ]
        if len(times) < 2:
            return None
        seconds, node = max(times, key=lambda item: item[0])
        median = statistics.median(each for each, _ in times)
        return SlowestNode(node.pod, node.rank, rounded(seconds), rounded(seconds / median))


def rounded(value: float) -> float:
    """Return six significant digits: more would only make the JSON longer."""
    return float(f"{value:.6g}")


def _mean(values: Iterable[float]) -> float | None:
    known = [*values]
    return math.fsum(known) / len(known) if known else None
