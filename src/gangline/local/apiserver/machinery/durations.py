"""Durations in the form of kubectl: at most two units, the smaller one only for small values."""

from collections.abc import Iterable
from datetime import UTC, datetime

UNKNOWN = "<unknown>"
DAY, YEAR = 86_400, 365 * 86_400

_STEPS = (
    # (below this many seconds, unit, its seconds, smaller unit, its seconds)
    (120, "s", 1, "", 0),
    (600, "m", 60, "s", 1),
    (10_800, "m", 60, "", 0),
    (28_800, "h", 3600, "m", 60),
    (2 * DAY, "h", 3600, "", 0),
    (8 * DAY, "d", DAY, "h", 3600),
    (2 * YEAR, "d", DAY, "", 0),
    (8 * YEAR, "y", YEAR, "d", DAY),
)


def format_duration(seconds: float) -> str:
    """Return a duration such as ``45s``, ``5m12s``, ``3h`` or ``2d4h``."""
    if seconds <= -2:
        return "<invalid>"
    total = max(0, int(seconds))
    for below, unit, size, small, small_size in _STEPS:
        if total < below:
            rest = total % size // small_size if small_size else 0
            return f"{total // size}{unit}" + (f"{rest}{small}" if rest else "")
    return f"{total // YEAR}y"


def parse_time(text: object) -> datetime | None:
    """Parse an RFC 3339 time. Returns None if the value is not a time."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_age(timestamp: object, now: datetime) -> str:
    """Return the time since ``timestamp``, or ``<unknown>`` if it is not a time."""
    parsed = parse_time(timestamp)
    return format_duration((now - parsed).total_seconds()) if parsed else UNKNOWN


def latest_time(timestamps: Iterable[object]) -> datetime | None:
    return max(filter(None, map(parse_time, timestamps)), default=None)
