"""Sets of replica indexes as text, in the format of Kubernetes' indexed jobs: ``0,2-4``."""

from collections.abc import Iterable
from itertools import groupby


def format_indexes(indexes: Iterable[int]) -> str:
    ordered = enumerate(sorted(set(indexes)))
    # Within a run, the difference between index and position is constant.
    runs = [[index for _, index in run] for _, run in groupby(ordered, lambda e: e[1] - e[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_indexes(text: str) -> frozenset[int]:
    """Parse a set of indexes. Unreadable parts are ignored, because users may edit the status."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), min(int(last or first), _MAX_INDEX) + 1))
    return frozenset(found)


_MAX_INDEX = 1_000_000
"""No job has this many replicas; a larger number is an error and must not fill the memory."""
