"""Records of what is derived from facts: histograms, fits, prices, predictions."""

from enum import StrEnum
from typing import Any, Final

import msgspec

from gangline.brain.models.histogram import CPU, MEMORY, Histogram, HistogramKind

HISTOGRAM_KINDS: dict[str, HistogramKind] = {"memory": MEMORY, "cpu": CPU}
"""By the name of the resource."""
HISTOGRAM_VERSION: Final = 1
"""Of the meaning of the buckets."""


class Scope(StrEnum):
    """What a histogram or a fit is about."""

    FAMILY = "family"
    JOB = "job"


class UsageHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one resource by one role."""

    role: str
    resource: str
    """``memory`` or ``cpu``."""
    histogram: Histogram


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was fitted to segments."""

    model: str
    version: int = 1
    """Of the meaning of ``parameters``."""
    parameters: dict[str, Any]
    covariance: list[list[float]] | None = None
    points: int
    error: float | None = None
    """Relative error of predictions for sizes that were left out of the fit."""
    at_ms: int
    validity: dict[str, Any] = {}
    """Ranges of settings that the data covers."""


class PriceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a resource at one time, in one cluster."""

    resource: str
    at_ms: int
    price: float
    free: float
    waiting: float


class SizingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction of ``gangline.sizing`` for one job, and what was measured."""

    at_ms: int
    predicted: dict[str, Any]
    measured: dict[str, Any] | None = None
