"""Foretells when a rank runs out of memory whose use grows steadily."""

import math
from statistics import median

from gangline.brain.advisers.advice import Advice, Confidence, Reason, Unit, What
from gangline.brain.advisers.usage.peaks import role_size
from gangline.brain.advisers.view import View
from gangline.brain.facts.records import MemorySample
from gangline.brain.models.trend import Trend, fit_trend

_LEAST_SECONDS = 600
_WARM_UP_S = 300
"""Caches fill at the start of a run; that is no leak."""
_HOUR_S = 3600


def growing_memory(view: View) -> list[Advice]:
    """Return a warning for each role with a rank that will reach its limit before the job ends."""
    rest_s = remaining_s(view)
    if rest_s is None:
        return []
    ranks: dict[tuple[str, int], list[MemorySample]] = {}
    for sample in view.memory_samples:
        ranks.setdefault((sample.role, sample.rank), []).append(sample)
    first: dict[str, Advice] = {}
    for (role, rank), samples in sorted(ranks.items()):
        size = role_size(view.run.job, role)
        if size is None or not size.memory_bytes:
            continue
        advice = _warn(view, rank, samples, size.memory_bytes, rest_s)
        known = first.get(role)
        if advice and (known is None or (advice.value or 0) < (known.value or 0)):
            first[role] = advice
    return list(first.values())


def remaining_s(view: View) -> float | None:
    """Return the expected rest of the job in seconds; None if it does not run.

    As reported; else what similar runs took longer than this one until now; else its age, which is
    the best guess for a duration of unknown scale.
    """
    if view.remaining_s is not None and math.isfinite(view.remaining_s):
        return view.remaining_s
    started = view.run.job.started_ms
    if started is None or view.run.job.finished_ms is not None:
        return None
    age = max(view.now_ms - started, 0) / 1000
    took = [
        (run.job.finished_ms - run.job.started_ms) / 1000
        for run in (view.similar.runs if view.similar else ())
        if run.job.finished_ms is not None and run.job.started_ms is not None
    ]
    longer = [each - age for each in took if each > age]
    return median(longer) if longer else age


def _warn(
    view: View, rank: int, samples: list[MemorySample], limit_bytes: int, rest_s: float
) -> Advice | None:
    begin_ms = samples[0].at_ms
    if view.run.job.started_ms is not None:
        begin_ms = view.run.job.started_ms
    settled = [each for each in samples if each.at_ms >= begin_ms + 1000 * _WARM_UP_S]
    if len(settled) < 2 or settled[-1].at_ms - settled[0].at_ms < 1000 * _LEAST_SECONDS:
        return None
    origin_ms = settled[0].at_ms
    trend = fit_trend(
        [(each.at_ms - origin_ms) / 1000 for each in settled],
        [float(each.memory_bytes) for each in settled],
    )
    if trend is None or not trend.grows:
        return None
    since_s = (view.now_ms - settled[-1].at_ms) / 1000
    used = trend.level + trend.slope * since_s
    seconds = max((limit_bytes - used) / trend.slope, 0.0)
    if seconds >= rest_s:
        return None
    return Advice(
        what=What.WARNING,
        role=samples[0].role,
        rank=rank,
        target="GrowingMemory",
        unit=Unit.SECONDS,
        value=seconds,
        low=seconds * (1 - _spread(trend)),
        high=seconds * (1 + _spread(trend)),
        reason=Reason(
            code="GrowingMemory",
            arguments={
                "role": samples[0].role,
                "rank": rank,
                "limit_bytes": limit_bytes,
                "used_bytes": round(used),
                "bytes_per_hour": round(trend.slope * _HOUR_S),
                "runs_out_ms": view.now_ms + round(seconds * 1000),
                "seconds": round(seconds),
                "needed_bytes": round(used + trend.slope * rest_s),
            },
        ),
        evidence=(view.run.job.uid,),
        confidence=Confidence.HIGH if trend.p_value < 1e-4 else Confidence.MEDIUM,
    )


def _spread(trend: Trend) -> float:
    """The relative uncertainty of the slope: the noise against the rise of the line."""
    return min(max(2 * trend.spread / max(trend.rise, 1.0) / math.sqrt(10), 0.05), 0.5)
