"""Metrics of a simulation, as a table and as a chart of utilisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gangline.scheduler.simulate.engine import JobRun, Sample, SimulationHistory
from gangline.scheduler.simulate.trace import SimulatedCluster


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Seconds from arrival to the first start."""

    count: int
    median: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Metrics of a simulation."""

    lasted: float
    """Seconds until the last job ended."""
    utilisation: Mapping[str, float]
    """Used fraction of each resource, from the first arrival to the last start."""
    waits: WaitStatistics
    by_queue: Mapping[str, WaitStatistics]
    by_size: Mapping[str, WaitStatistics]
    fairness: float
    """Jain's index over the mean slowdowns of queues: 1 if all are equal."""
    evictions: int
    redone: float
    """Pod-seconds of work that were repeated after evictions and failures."""
    unstarted: int
    decisions: int


def summarize(history: SimulationHistory, cluster: SimulatedCluster) -> SimulationResult:
    runs = list(history.runs.values())
    queues = sorted({run.job.queue for run in runs})
    by_queue = {queue: [run for run in runs if run.job.queue == queue] for queue in queues}
    return SimulationResult(
        lasted=max((run.ended or 0.0 for run in runs), default=0.0),
        utilisation=_utilisation(_busy(history), cluster),
        waits=_waits(runs),
        by_queue={queue: _waits(of) for queue, of in by_queue.items()},
        by_size={
            name: _waits([r for r in runs if low <= r.job.size < high])
            for name, low, high in _SIZES
        },
        fairness=_jain([_slowdown(of) for of in by_queue.values()]),
        evictions=history.evictions,
        redone=sum(run.lost * run.job.size for run in runs),
        unstarted=sum(run.first_started is None for run in runs),
        decisions=history.decisions,
    )


_SIZES = (("1 pod", 1, 2), ("2 to 7 pods", 2, 8), ("8 pods and more", 8, 10**9))


def _waits(runs: Sequence[JobRun]) -> WaitStatistics:
    waited = [run.waited for run in runs if run.waited is not None]
    if not waited:
        return WaitStatistics(0, 0.0, 0.0, 0.0)
    median, p95 = np.percentile(waited, (50, 95))
    return WaitStatistics(len(waited), float(median), float(p95), max(waited))


def _slowdown(runs: Sequence[JobRun]) -> float:
    """Return the mean of (end - arrival) / duration over ended jobs."""
    ratios = [
        (run.ended - run.job.arrival) / max(run.job.duration, 1.0)
        for run in runs
        if run.ended is not None
    ]
    return float(np.mean(ratios)) if ratios else 1.0


def _jain(values: Sequence[float]) -> float:
    array = np.array(values)
    return float(array.sum() ** 2 / (len(array) * (array**2).sum())) if len(array) else 1.0


def _busy(history: SimulationHistory) -> list[Sample]:
    """Return the samples up to the last start: afterwards no gang is pending."""
    starts = [r.first_started for r in history.runs.values() if r.first_started is not None]
    last = max(starts, default=0.0)
    return [sample for sample in history.samples if sample.at <= last]


def _utilisation(samples: Sequence[Sample], cluster: SimulatedCluster) -> dict[str, float]:
    total: dict[str, int] = {}
    for node in cluster.nodes:
        for name, amount in node.allocatable:
            total[name] = total.get(name, 0) + amount
    span = samples[-1].at - samples[0].at if len(samples) > 1 else 0.0
    if not span:
        return {}
    used = dict.fromkeys(total, 0.0)
    for sample, following in pairwise(samples):
        for name in used:
            used[name] += sample.running.get(name, 0) * (following.at - sample.at)
    return {name: used[name] / (total[name] * span) for name in used if total[name]}


_BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72


def result_rows(outcome: SimulationResult) -> list[tuple[str, str]]:
    """Return the metrics with their names."""
    rows = [("lasted", format_duration(outcome.lasted))]
    rows += [
        (f"{name} in use", f"{part:.1%}")
        for name, part in sorted(outcome.utilisation.items())
        if name != "pods"
    ]
    rows += [
        ("fairness between queues (1 is even)", f"{outcome.fairness:.3f}"),
        ("pods evicted", str(outcome.evictions)),
        ("repeated work of pods", format_duration(outcome.redone)),
        ("jobs that never started", str(outcome.unstarted)),
        ("decisions", str(outcome.decisions)),
    ]
    return rows


def wait_rows(outcome: SimulationResult) -> list[tuple[str, str, str, str, str]]:
    """Return waiting times: group of jobs, count, median, 95th percentile, maximum."""
    of = [("all", outcome.waits), *outcome.by_size.items()]
    if len(outcome.by_queue) > 1:
        of += [(f"queue {queue}", waited) for queue, waited in outcome.by_queue.items()]
    return [_row(name, waited) for name, waited in of if waited.count]


def _row(name: str, waited: WaitStatistics) -> tuple[str, str, str, str, str]:
    times = (
        format_duration(waited.median),
        format_duration(waited.p95),
        format_duration(waited.longest),
    )
    return (name, str(waited.count), *times)


def usage_chart(samples: Sequence[Sample], resource: str, total: int) -> str:
    """Draw the used fraction of a resource, and the number of pending gangs, over time."""
    if len(samples) < 2 or not total:
        return ""
    begin, end = samples[0].at, samples[-1].at
    used, waiting, index = [], [], 0
    for column in range(WIDTH):
        at = begin + (end - begin) * column / WIDTH
        while index + 1 < len(samples) and samples[index + 1].at <= at:
            index += 1
        used.append(samples[index].running.get(resource, 0) / total)
        waiting.append(float(samples[index].waiting))
    most = max(waiting)
    return "\n".join(
        [
            f"{resource} in use, 0 to 100%",
            _line(used),
            f"gangs waiting, 0 to {most:.0f}",
            _line([count / most if most else 0.0 for count in waiting]),
        ]
    )


def _line(parts: Sequence[float]) -> str:
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, max(0, round(part * last)))] for part in parts)


def format_duration(seconds: float) -> str:
    """Format a duration: ``12 s``, ``3.5 min``, ``2.0 h``, ``1.5 d``."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
