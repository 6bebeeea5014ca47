"""Curves of a job: what its training reports, and what its pods use, over time and over steps."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gangline.dashboard.views.base import View

MAX_ROWS = 40
"""Of the table behind a chart; the points are chosen evenly."""
MARKS = {"restarted", "workersRestarted", "resized", "suspended", "resumed"}
_UNITS = {
    "cpu": "cores",
    "gpus": "devices",
    "memory": "GiB",
    "gpuMemory": "GiB",
    "step time": "s",
    "steps/s": "1/s",
    "samples/s": "1/s",
}
_LAST = ("step time", "steps/s", "samples/s", "cpu", "memory", "gpus", "gpuMemory")
"""After the numbers of the script, in this order."""


class Mark(View, frozen=True):
    """A vertical line: a restart, a change of size, a suspension."""

    at_ms: int
    what: str
    text: str = ""

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Line(View, frozen=True):
    name: str
    values: tuple[float | None, ...]

    @property
    def known(self) -> tuple[float, ...]:
        """The values that were measured."""
        return tuple(value for value in self.values if value is not None)


class CurveChart(View, frozen=True):
    """Some lines over the same times."""

    name: str
    at_ms: tuple[int, ...]
    lines: tuple[Line, ...]
    unit: str = ""
    steps: tuple[float | None, ...] = ()
    """The step of each time; empty if steps are not reported."""
    is_band: bool = False
    """True if the first and the last line are the bounds of a band around the second."""

    @property
    def main(self) -> Line:
        """The line that the summary describes."""
        return self.lines[len(self.lines) // 2]

    @property
    def rows(self) -> list[tuple[datetime, float | None, list[float | None]]]:
        """Time, step and values of some points, the last among them."""
        count = len(self.at_ms)
        every = max(1, -(-count // MAX_ROWS))
        chosen = [number for number in range(count) if (count - 1 - number) % every == 0]
        return [
            (
                datetime.fromtimestamp(self.at_ms[number] / 1000, UTC),
                self.steps[number] if self.steps else None,
                [line.values[number] for line in self.lines],
            )
            for number in chosen
        ]


class CurvesView(View, frozen=True):
    charts: tuple[CurveChart, ...] = ()
    marks: tuple[Mark, ...] = ()


def curves_view(record: Mapping[str, Any]) -> CurvesView:
    charts = sorted(_charts(record.get("curves") or {}), key=_order)
    entries: Iterable[Mapping[str, Any]] = record.get("timeline") or ()
    marks = tuple(
        Mark(entry["at_ms"], entry["what"], _mark_text(entry))
        for entry in entries
        if entry["what"] in MARKS
    )
    return CurvesView(tuple(charts), marks)


def _charts(tables: Mapping[str, Any]) -> Iterator[CurveChart]:
    training, usage, ranks = (_columns(tables, name) for name in ("training", "usage", "ranks"))
    events = _columns(tables, "events")
    event_times = tuple(tables.get("events", {}).get("at_ms") or ())
    event_steps = events.pop("step", ())
    for name, values in events.items():
        title = f"{name} (TensorBoard)" if name in training else name
        yield CurveChart(title, event_times, (Line(name, values),), "", event_steps)
    at_ms = tuple(tables.get("training", {}).get("at_ms") or ())
    steps = training.pop("step", ())
    for name, values in training.items():
        yield CurveChart(name, at_ms, (Line(name, values),), _UNITS.get(name, ""), steps)
    if {"lowest", "median", "highest"} <= ranks.keys():
        lines = tuple(Line(name, ranks[name]) for name in ("lowest", "median", "highest"))
        yield CurveChart("step time", tuple(tables["ranks"]["at_ms"]), lines, "s", is_band=True)
    elif "steps/s" in training:
        times = tuple(1 / value if value else None for value in training["steps/s"])
        yield CurveChart("step time", at_ms, (Line("step time", times),), "s", steps)
    at_ms = tuple(tables.get("usage", {}).get("at_ms") or ())
    for name, values in usage.items():
        unit = _UNITS.get(name, "")
        shown = tuple(value and value / 2**30 for value in values) if unit == "GiB" else values
        yield CurveChart(name, at_ms, (Line(name, shown),), unit)


def _columns(tables: Mapping[str, Any], name: str) -> dict[str, tuple[float | None, ...]]:
    values = tables.get(name, {}).get("values") or {}
    return {column: tuple(numbers) for column, numbers in values.items()}


def _order(chart: CurveChart) -> tuple[int, str]:
    if chart.name == "loss":
        return -1, ""
    return (_LAST.index(chart.name) + 1 if chart.name in _LAST else 0), chart.name


def _mark_text(entry: Mapping[str, Any]) -> str:
    parts = (entry.get("replica", ""), entry.get("cause", ""), entry.get("text", ""))
    return ": ".join(filter(None, parts))
