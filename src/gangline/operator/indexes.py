"""Sets of replica indexes as text, the way Kubernetes writes them for indexed jobs: ``0,2-4``."""

from collections.abc import Iterable
from itertools import groupby


def write(indexes: Iterable[int]) -> str:
    """Write a set of indexes; runs are shortened."""
    ordered = enumerate(sorted(set(indexes)))
    # Within a run, an index and its place in the order grow together.
    runs = [[index for _, index in run] for _, run in groupby(ordered, lambda e: e[1] - e[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def read(text: str) -> frozenset[int]:
    """Read a set of indexes; parts that cannot be read are left out, for anybody may write them."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), min(int(last or first), _LARGEST) + 1))
    return frozenset(found)


_LARGEST = 1_000_000
"""No job has so many replicas; a larger number is a slip and must not fill the memory."""
