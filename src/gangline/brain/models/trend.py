"""Growth of a series: the Theil-Sen slope, and how likely it is by chance.

The slope is the median of the slopes of all pairs of points, so that single outliers do not matter.
Whether there is growth is the test of Mann and Kendall, with its correction for equal values
(Kendall, Rank Correlation Methods; Sen 1968, J. Am. Stat. Assoc. 63, 1379). Memory at one minute is
much like that at the minute before, so the test counts points as fewer than they are: its variance
is multiplied by (1 + r) / (1 - r), with the correlation r of successive points about the line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOST_POINTS = 120
"""Longer series are reduced to the medians of this many consecutive parts, which also makes the
points less dependent of each other."""
_FEWEST_POINTS = 8


@dataclass(frozen=True, slots=True)
class Trend:
    slope: float
    """Units of the value per unit of time."""
    level: float
    """The value of the line at the last point."""
    p_value: float
    """How likely a slope at least this far above 0 is without growth (one-sided)."""
    spread: float
    """Standard deviation of the points about the line, estimated from the median deviation."""
    late_slope: float
    """The slope of the second half alone: lower where growth levels off."""
    rise: float
    """How far the line rises from the first point to the last."""

    @property
    def grows(self) -> bool:
        """Whether the series grows steadily: significantly, beyond its noise, and still."""
        return (
            self.slope > 0
            and self.p_value < 0.001
            and self.rise > 3 * self.spread
            and self.late_slope > 0.5 * self.slope
        )


def fit_trend(times: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Fit a line to a series.

    Returns:
        None for fewer than eight points, or if all are of the same time.
    """
    if len(times) < _FEWEST_POINTS or times[-1] <= times[0]:
        return None
    x, y = _reduced(np.asarray(times, float), np.asarray(values, float))
    slope = _theil_sen(x, y)
    offset = float(np.median(y - slope * x))
    residuals = y - slope * x - offset
    half = len(x) // 2
    return Trend(
        slope=slope,
        level=offset + slope * float(x[-1]),
        p_value=_mann_kendall(y, _correlation(residuals)),
        spread=1.4826 * float(np.median(np.abs(residuals - np.median(residuals)))),
        late_slope=_theil_sen(x[half:], y[half:]),
        rise=slope * float(x[-1] - x[0]),
    )


def _reduced(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(x) <= _MOST_POINTS:
        return x, y
    parts = np.array_split(np.array([x, y]), _MOST_POINTS, axis=1)
    first, second = np.array([np.median(part, axis=1) for part in parts]).T
    return first, second


def _theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first]
    distinct = apart > 0
    if not distinct.any():
        return 0.0
    return float(np.median((y[second] - y[first])[distinct] / apart[distinct]))


def _mann_kendall(y: np.ndarray, correlation: float) -> float:
    n = len(y)
    first, second = np.triu_indices(n, 1)
    score = float(np.sign(y[second] - y[first]).sum())
    _, ties = np.unique(y, return_counts=True)
    variance = n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    if variance <= 0:
        return 1.0
    variance *= (1 + correlation) / (1 - correlation)
    z = (score - math.copysign(1.0, score)) / math.sqrt(variance / 18) if score else 0.0
    return 0.5 * math.erfc(z / math.sqrt(2))


def _correlation(residuals: np.ndarray) -> float:
    """Correlation of successive residuals, 0 to 0.98."""
    centred = residuals - residuals.mean()
    squares = float(centred @ centred)
    if squares <= 0:
        return 0.0
    n = len(centred)
    r = float(centred[1:] @ centred[:-1]) / squares
    # The estimate is too low by about (1 + 4 r) / n (Kendall 1954).
    return min(max(r + (1 + 4 * max(r, 0.0)) / n, 0.0), 0.98)
