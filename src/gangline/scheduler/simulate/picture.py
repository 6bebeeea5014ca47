"""A simulation as text: a table of metrics, and a chart of utilisation."""

from collections.abc import Sequence

from gangline.scheduler.simulate.engine import Sample
from gangline.scheduler.simulate.outcome import SimulationResult, WaitStatistics

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
        ("free devices of no use to the usual pod", f"{outcome.fragmented:.1%}"),
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
            f"{_line(used)}  {resource} in use",
            f"{_line([each / most if most else 0.0 for each in waiting])}  gangs waiting, "
            f"{most:.0f} at most",
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
