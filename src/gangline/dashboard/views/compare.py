"""What differs between two runs: their curves over steps and over time, specification, goodput."""

from collections.abc import Mapping
from typing import Any

from gangline.dashboard.views.base import View
from gangline.dashboard.views.curves import CurveChart, curves_view
from gangline.dashboard.views.job import difference, to_yaml
from gangline.dashboard.views.past import PastRow, past_row


class Side(View, frozen=True):
    row: PastRow
    duration_s: float | None = None
    gpu_hours: float = 0.0
    core_hours: float = 0.0


class PairedCurve(View, frozen=True):
    name: str
    unit: str
    left: CurveChart | None
    right: CurveChart | None

    @property
    def has_steps(self) -> bool:
        """Whether the numbers can be shown over steps."""
        return all(chart is not None and bool(chart.steps) for chart in (self.left, self.right))


class CompareView(View, frozen=True):
    given: tuple[str, ...] = ()
    left: Side | None = None
    right: Side | None = None
    curves: tuple[PairedCurve, ...] = ()
    difference: tuple[str, ...] = ()
    """Lines of the difference of the specifications: they begin with ``+``, ``-`` or a space."""
    problem: str = ""
    """Why nothing can be compared; empty if it can."""


def compare_view(
    given: tuple[str, str], left: Mapping[str, Any], right: Mapping[str, Any]
) -> CompareView:
    charts = [
        {chart.name: chart for chart in curves_view(stored.get("record") or {}).charts}
        for stored in (left, right)
    ]
    names = [*charts[0], *(name for name in charts[1] if name not in charts[0])]
    pairs = ((charts[0].get(name), charts[1].get(name)) for name in names)
    return CompareView(
        given,
        _side(left),
        _side(right),
        tuple(
            PairedCurve(one.name, one.unit, first, second)
            for first, second in pairs
            if (one := first or second) is not None
        ),
        difference(_comparable(left), _comparable(right)),
    )


def _side(stored: Mapping[str, Any]) -> Side:
    row = past_row(stored["job"], stored.get("record"))
    began, ended = row.started, row.finished
    return Side(
        row,
        (ended - began).total_seconds() if began and ended else None,
        stored.get("gpu_seconds", 0) / 3600,
        stored.get("cpu_seconds", 0) / 3600,
    )


_OF_THE_OBJECT = ("uid", "creationTimestamp", "name")


def _comparable(stored: Mapping[str, Any]) -> str:
    """Return a specification as YAML, without what identifies its object."""
    written = dict((stored.get("spec") or {}).get("written") or {})
    meta = written.get("metadata") or {}
    written["metadata"] = {key: meta[key] for key in meta if key not in _OF_THE_OBJECT}
    return to_yaml(written)
