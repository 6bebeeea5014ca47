"""Right-sizing: memory and CPU of each role, from what similar runs used.

Memory: ``max(p98 of the peaks, largest peak of the last 3 runs) * 1.15``, at least 256 MiB, where
a sample is the peak of one rank in one run; ranks that were killed count as ``usage.peaks`` says,
without a margin on top. The limit equals the request. A rank that uses much more than all others
gets a number of its own. CPU: ``p95 * 1.1`` of what ranks used; it is raised, never lowered, where
training waits for its data. Nothing is lowered on the evidence of runs that are only similar, or
where the job is larger than all of them.

Reasons, with their arguments and an example of a sentence; bytes, millicores and seconds are in
the names, times are milliseconds since 1970, and ``role`` is an argument of all of them:

``HighestPeak``
    ``runs, level, stem, first_ms, last_ms, peak_bytes, peak_rank, peak_run, margin_percent, ooms,
    replicas, saved_bytes`` (of all replicas; negative if more is advised; 0 if nothing is asked).
    "memory of worker: 11.3Gi instead of 32Gi. The highest peak of the last 9 runs of train-resnet
    (8 to 21 Nov) was 9.8 GiB, in rank 3 of train-resnet-41; 15 % are added. None of them ran out
    of memory. Saves 82.8Gi for 4 workers."
``UsualPeak``
    As ``HighestPeak``, with ``usual_bytes, highest_bytes`` instead of ``peak_bytes, peak_rank,
    peak_run``: the highest peak is old or rare. "memory of worker: 9.2Gi instead of 32Gi. 9 runs
    of train-resnet (25 Oct to 21 Nov) usually needed up to 8.0 GiB, to which 15 % are added; a
    single peak of 14.0 GiB has faded."
``OutOfMemory``
    ``limit_bytes, kills, ranks, runs, rank``. "memory of worker: 12Gi instead of 10Gi. Rank 2 was
    killed 10 times at 10Gi; how much it needs is not known, so 20 % are added."
``LowerBound``
    ``runs, peak_bytes, margin_percent``. "memory of worker: 9.2Gi instead of 8Gi. No similar run
    has succeeded; 3 unfinished or failed ones used up to 8.0 GiB, and 15 % are added."
``NotLowered``
    ``runs, level, estimate_bytes`` or ``estimate_millis``, ``because`` (``similarity`` or
    ``size``). "memory of worker stays 32Gi. 12 similar runs used at most 9.8 GiB, but they are of
    other jobs with the same image." / "..., but this job is larger than all of them."
``CpuUse``
    ``runs, level, p95_millis, margin_percent, replicas, saved_millis``. "CPU of worker: 3.1
    instead of 8. In 9 runs a rank used at most 2.8 cores in 95 % of the time; 10 % are added."
``LoaderStarved``
    ``data_percent, p95_millis, runs``. "CPU of worker: 6 instead of 4. 31 % of a step is waiting
    for data, and the CPU is used up to 3.9 cores."

Warnings (``What.WARNING``, nothing to set):

``RequestBelowNeed``
    ``request_bytes, need_bytes, runs, ooms``. "worker asks for 8Gi, and similar runs needed 11.3Gi;
    2 of 9 ran out of memory."
``LimitTooLow``
    ``limit_bytes, kills, runs, days, need_bytes``. "50 kills in 7 days at 8Gi: the limit is too
    low, at least 9.6Gi are needed."
``LargestNodeTooSmall``
    ``limit_bytes, node_bytes, kills``. "worker was killed at 512Gi, and the largest node has
    512Gi. More memory is no remedy: use a smaller batch or more shards; see gangline plan."
``GrowingMemory``
    ``rank, limit_bytes, used_bytes, bytes_per_hour, runs_out_ms, seconds, needed_bytes`` (at the
    expected end). "rank 3 of worker grows by 1.2 GiB an hour and runs out of memory at about
    14:20, in 58 minutes; the job needs about 16Gi until its end."

Foretells when a rank runs out of memory whose use grows steadily.
"""

import math
from statistics import median

from gangline.brain.advisers.advice import Advice, Confidence, Reason, Unit, What
from gangline.brain.advisers.cpu import advise_cpu
from gangline.brain.advisers.memory import advise_memory
from gangline.brain.advisers.usage import role_size, running_size
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
    settled = [sample for sample in samples if sample.at_ms >= begin_ms + 1000 * _WARM_UP_S]
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


def advise(view: View) -> list[Advice]:
    """Return advice on memory and CPU of each role, and warnings about them."""
    found: list[Advice] = []
    for role in sorted({each.role for each in view.run.job.roles}):
        size = running_size(view.run.job, role)
        if size is not None:
            found += advise_memory(view, size)
            found += advise_cpu(view, size)
    return found + growing_memory(view)
