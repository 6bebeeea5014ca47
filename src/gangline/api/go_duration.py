"""Durations as Go writes them, such as ``1h2m3.5s``."""

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_go_duration(written: str) -> float:
    """Return a duration in seconds; 0: it is not a positive one."""
    text = written.strip()
    if _PART.sub("", text):
        return 0.0
    return sum(float(count) * _UNITS.get(unit, 3600.0) for count, unit in _PART.findall(text))
