"""What the nodes of a world report, added up by segment and by the minute.

A segment has one mean of all nodes, which hides a slow one; the minutes show it. Minutes are
counted by the job's clock, which is monotonic, so that all nodes have the same ones whatever
happens to the wall clock.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gangline.api.jobs.training_facts import RankFacts, SlowestNode
from gangline.elastic.protocol.messages import NodeReport

MAX_MODELS = 8
_TIMES = ("compute_s", "sync_s", "data_s")
WINDOW_S = 60.0
WINDOWS = 6
"""Complete minutes that are published."""
MAX_RANKS = 32
"""Nodes that are published."""


@dataclass(slots=True)
class NodeSums:
    """Reports of one node; times are weighted with the number of steps since the last report."""

    rank: int
    last: NodeReport
    pod: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Sum of seconds times steps, by name."""
    steps: dict[str, int] = field(default_factory=dict)
    """Sum of the weights, by name."""
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
        self._nodes.setdefault(node, NodeSums(rank, report)).add(report, max(1, steps))

    def mean_s(self, name: str) -> float | None:
        means = (node.mean_s(name) for node in self._nodes.values())
        return _mean(value for value in means if value is not None)

    def mean_of_last(self, name: str) -> float | None:
        return _mean(self._last(name))

    def maximum_of_last(self, name: str) -> float | None:
        return max(self._last(name), default=None)

    def _last(self, name: str) -> list[float]:
        """Return a value of the latest reports of all nodes that report it."""
        values = (getattr(node.last, name) for node in self._nodes.values())
        return [value for value in values if value is not None]

    def device_models(self) -> list[str]:
        models = {node.last.device_model for node in self._nodes.values()}
        return sorted(models - {""})[:MAX_MODELS]

    def devices_per_node(self) -> int | None:
        """Return the highest number of devices of a node; None if no device is reported."""
        counts = [len(node.last.device_peak_bytes) for node in self._nodes.values()]
        return max(counts, default=0) or None

    def peaks(self) -> dict[str, int]:
        """Return the highest device memory in use, by device model."""
        used = ((node.last.device_model, node.peak_bytes) for node in self._nodes.values())
        return _by_model(used, max)

    def device_memory(self) -> dict[str, int]:
        """Return the memory of the smallest device of each model, where it is reported."""
        reports = [node.last for node in self._nodes.values()]
        sizes = ((report.device_model, report.device_memory_bytes or 0) for report in reports)
        return _by_model(sizes, min)

    def slowest(self) -> SlowestNode | None:
        """Return the node with the highest compute time; None with fewer than two nodes."""
        times = [
            (seconds, node) for node in self._nodes.values() if (seconds := node.mean_s(_TIMES[0]))
        ]
        if len(times) < 2:
            return None
        seconds, node = max(times, key=lambda item: item[0])
        median = statistics.median(time_s for time_s, _ in times)
        return SlowestNode(node.pod, node.rank, rounded(seconds), rounded(seconds / median))


def _by_model(
    sizes: Iterable[tuple[str, int]], combine: Callable[[int, int], int]
) -> dict[str, int]:
    combined: dict[str, int] = {}
    for model, size in sizes:
        if size and (model in combined or len(combined) < MAX_MODELS):
            combined[model] = combine(combined.get(model, size), size)
    return combined


def rounded(value: float) -> float:
    """Return six significant digits: more would only make the JSON longer."""
    return float(f"{value:.6g}")


def _mean(values: Iterable[float]) -> float | None:
    numbers = [*values]
    return math.fsum(numbers) / len(numbers) if numbers else None


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    weight: int = 0

    def add(self, value: float | None, weight: int) -> None:
        if value is not None:
            self.total += value * weight
            self.weight += weight

    def value(self) -> float | None:
        return rounded(self.total / self.weight) if self.weight else None


@dataclass(slots=True)
class _Minute:
    compute: _Mean = field(default_factory=_Mean)
    sync: _Mean = field(default_factory=_Mean)


@dataclass(slots=True)
class _NodeMinutes:
    rank: int
    name: str = ""
    device_model: str = ""
    minutes: dict[int, _Minute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankWindows:
    """The last complete minutes of a world."""

    since_ms: int = 0
    """Start of the first minute, in milliseconds since 1970."""
    ranks: Sequence[RankFacts] = ()


NO_WINDOWS = RankWindows()


class WindowTable:
    """The minutes of the nodes of one world; another round begins a new one."""

    def __init__(self) -> None:
        self._round = -1
        self._nodes: dict[int, _NodeMinutes] = {}

    def observe(
        self, round_: int, node: int, rank: int, report: NodeReport, steps: int, now_s: float
    ) -> None:
        """Add a node's report about ``steps`` steps; ``now_s`` is the job's clock."""
        if report.compute_s is None:
            return
        if round_ != self._round:
            self._round, self._nodes = round_, {}
        node_minutes = self._nodes.setdefault(node, _NodeMinutes(rank))
        node_minutes.rank = rank
        node_minutes.name, node_minutes.device_model = (
            report.pod or node_minutes.name,
            report.device_model,
        )
        minute = node_minutes.minutes.setdefault(int(now_s // WINDOW_S), _Minute())
        weight = max(1, steps)
        minute.compute.add(report.compute_s, weight)
        minute.sync.add(report.sync_s, weight)
        while len(node_minutes.minutes) > WINDOWS + 2:
            del node_minutes.minutes[min(node_minutes.minutes)]

    def facts(self, now_s: float, wall_ms: int) -> RankWindows:
        """Return the complete minutes, oldest first; ``now_s`` and ``wall_ms`` are the same time.

        The first minute of a world is left out: it has the warm-up.
        """
        current = int(now_s // WINDOW_S)
        seen = [minute for node in self._nodes.values() for minute in node.minutes]
        first = max(min(seen, default=current) + 1, current - WINDOWS)
        if len(self._nodes) < 2 or first >= current:
            return NO_WINDOWS
        minutes = range(first, current)
        ranks = [_facts(node, minutes) for node in self._nodes.values()]
        since_ms = wall_ms - round((now_s - first * WINDOW_S) * 1000)
        return RankWindows(max(since_ms, 0), select_ranks(ranks))


def _facts(node: _NodeMinutes, minutes: Iterable[int]) -> RankFacts:
    window = [node.minutes.get(minute) for minute in minutes]
    sync = tuple(None if minute is None else minute.sync.value() for minute in window)
    return RankFacts(
        name=node.name,
        rank=node.rank,
        device_model=node.device_model,
        compute_seconds=tuple(
            None if minute is None else minute.compute.value() for minute in window
        ),
        sync_seconds=sync if any(minute is not None for minute in sync) else (),
    )


def select_ranks(ranks: Sequence[RankFacts], most: int = MAX_RANKS) -> list[RankFacts]:
    """Return at most so many nodes: the slowest ones, and an even selection of the others.

    The slow node computes longest, or waits least for the others. A quarter are the slowest ones,
    because more slow nodes than that are a slow job.
    """
    if len(ranks) <= most:
        return sorted(ranks, key=lambda node: node.rank)
    ordered = sorted(ranks, key=lambda node: -_mean_facts(node.compute_seconds))
    by_wait = sorted(ranks, key=lambda node: _mean_facts(node.sync_seconds))
    slowest = ordered[: most // 8]
    slowest += [node for node in by_wait if node not in slowest][: most // 4 - len(slowest)]
    others = [node for node in ordered if node not in slowest]
    kept = most - len(slowest)
    chosen = [others[index * len(others) // kept] for index in range(kept)]
    return sorted([*slowest, *chosen], key=lambda node: node.rank)


def _mean_facts(values: Sequence[float | None]) -> float:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else 0.0
