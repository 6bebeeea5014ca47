"""The memory that a role needs, from the peaks and kills of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from gangline.brain.advisers.similarity import HALF_LIFE_MS, last_ms
from gangline.brain.advisers.usage.peaks import MIB, Kill, Peak
from gangline.brain.models.histogram import MEMORY, Histogram

MARGIN = 1.15
LEAST_BYTES = 256 * MIB
_LAST_RUNS = 3
_WEIGHT = 10
"""Integer weight of a sample of level 0; others have the share that their level allows."""


@dataclass(frozen=True, slots=True)
class MemorySize:
    """A number, and what it rests on."""

    value_bytes: int
    low_bytes: int
    high_bytes: int
    basis_bytes: int
    """What the margin is added to; 0 if there is no peak."""
    highest: Peak | None
    """The highest peak."""
    from_kill: Kill | None
    """Set if the number is an estimate from a kill."""
    runs: int


def size_memory(
    found: Sequence[Peak], unknown: Sequence[Kill], weights: dict[str, float] | None = None
) -> MemorySize | None:
    """Derive the memory from the peaks of the ranks and the kills with unknown need.

    Args:
        found: real peaks, one for each rank and run.
        unknown: kills whose real need is not known yet.
        weights: how much a run counts beside its age, by its UID; 1 where it is not given.

    Returns:
        None without any peak or kill: a number is never invented.
    """
    killed = max(unknown, key=lambda each: (each.needed_bytes, each.at_ms), default=None)
    if not found:
        if killed is None:
            return None
        value = _rounded(killed.needed_bytes)
        return MemorySize(value, killed.limit_bytes, 2 * value, 0, None, killed, 1)
    histogram = Histogram(MEMORY)
    for each in found:
        share = (weights or {}).get(each.job.uid, 1.0)
        histogram.add(each.memory_bytes, each.at_ms, max(round(_WEIGHT * share), 1))
    usual = histogram.percentile(980) or 0
    median = histogram.percentile(500) or 0
    recent = max(each.memory_bytes for each in _last_runs(found))
    basis = max(usual, recent)
    real = max(basis * MARGIN, LEAST_BYTES)
    value = _rounded(max(real, killed.needed_bytes if killed else 0))
    runs = len({each.job.uid for each in found})
    highest = max(found, key=lambda each: (each.memory_bytes, each.at_ms))
    # As the Vertical Pod Autoscaler widens its upper bound by 1 + 1/days: here by runs.
    high = _rounded(max(highest.memory_bytes * MARGIN, value) * (1 + 1 / max(runs, 1)))
    return MemorySize(
        value_bytes=value,
        low_bytes=min(_rounded(max(median * MARGIN, LEAST_BYTES)), value),
        high_bytes=high,
        basis_bytes=basis,
        highest=highest,
        from_kill=killed if killed and killed.needed_bytes > real else None,
        runs=runs,
    )


def _last_runs(found: Sequence[Peak]) -> list[Peak]:
    """The peaks of the three runs that ended last, if they still count half as much as new ones."""
    ended: dict[str, int] = {}
    for each in found:
        ended[each.job.uid] = max(last_ms(each.job), each.at_ms)
    newest = sorted(ended, key=lambda uid: (-ended[uid], uid))[:_LAST_RUNS]
    limit = ended[newest[0]] - HALF_LIFE_MS
    return [each for each in found if each.job.uid in newest and ended[each.job.uid] >= limit]


def _rounded(amount: float) -> int:
    """Up to the next MiB, so that manifests stay readable."""
    return -(-int(-(-amount // 1)) // MIB) * MIB
