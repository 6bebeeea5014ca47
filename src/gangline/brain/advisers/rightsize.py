"""Right-sizing: memory and CPU of each role, from what similar runs used.

Memory: ``max(p98 of the peaks, largest peak of the last 3 runs) * 1.15``, at least 256 MiB, where
a sample is the peak of one rank in one run; ranks that were killed count as ``usage`` says, without
a margin on top. The limit equals the request. A rank that uses much more than all others gets a
number of its own. CPU: ``p95 * 1.1`` of what ranks used; it is raised, never lowered, where
training waits for its data. Nothing is lowered on the evidence of runs that are only similar, or
where the job is larger than all of them. A rank whose memory grows steadily is warned about before
it reaches its limit. The sentences of all reasons are in ``explain``.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.advisers.advice import Advice, Arguments, Confidence, Unit, What, because
from gangline.brain.advisers.memory import (
    UNCHANGED,
    advise_memory,
    confidence_of,
    obstacle_to_lower,
    range_factor,
    role_size,
    round_up,
    running_size,
)
from gangline.brain.advisers.view import AdviserView, expected_rest_s
from gangline.brain.facts.records import MemorySample, RoleSize, Run
from gangline.brain.models.histogram import CPU, Histogram
from gangline.brain.models.trend import fit_trend

MARGIN = 1.1
LEAST_MILLIS = 100
STARVED_SHARE = 0.1
"""Part of a step that may be waiting for data."""
RAISE = 1.5
_USED_UP = 0.8
"""Share of the request from which more CPU helps a data loader."""
_STEP_MILLIS = 10
_SAMPLES_OF_A_RUN = 1000


class _CpuSize(NamedTuple):
    """A number in millicores, and what it rests on."""

    value: int
    low: int
    high: int
    p95: int
    runs: int


def _cpu_size(runs: Iterable[Run], role: str, now_ms: int) -> _CpuSize | None:
    """Derive the CPU from the use of the ranks; None if it was not measured.

    A run is recorded by its median, 95th percentile and maximum. They enter the histogram with the
    shares 50, 45 and 5 %, so that the percentiles of one run come out again.
    """
    histogram = Histogram(CPU)
    seen = set()
    for run in runs:
        for pod in run.pods:
            if pod.role != role or not pod.cpu_p95_millis or pod.samples < 1:
                continue
            at_ms = min(pod.ended_ms or now_ms, now_ms)
            count = min(pod.samples, _SAMPLES_OF_A_RUN)
            usual = pod.cpu_p95_millis
            histogram.add(pod.cpu_p50_millis or usual, at_ms, 10 * count)
            histogram.add(usual, at_ms, 9 * count)
            histogram.add(pod.cpu_max_millis or usual, at_ms, count)
            seen.add(run.job.uid)
    p95, median = histogram.percentile(950), histogram.percentile(500)
    if p95 is None or median is None:
        return None
    low, usual, high = (
        round_up(millis * MARGIN, _STEP_MILLIS) for millis in (median, p95, histogram.peak)
    )
    value = max(usual, LEAST_MILLIS)
    return _CpuSize(value, min(low, value), max(high, value), p95, len(seen))


def data_share(segments: Sequence[SegmentFacts]) -> float | None:
    """Return the part of the steps that is waiting for data; None where it is not reported."""
    measured = [
        (segment.data_seconds * segment.steps, segment.step_seconds.mean * segment.steps)
        for segment in segments
        if segment.data_seconds is not None
        and segment.quality == GOOD
        and segment.data_seconds <= segment.step_seconds.mean
    ]
    return (
        sum(data for data, _ in measured) / sum(step for _, step in measured) if measured else None
    )


def advise_cpu(view: AdviserView, size: RoleSize) -> list[Advice]:
    role, runs, level = size.role, view.similar.runs, view.similar.level
    was = size.cpu_millis or None
    waits = data_share(view.run.segments)
    if waits is None:
        waits = data_share([segment for run in runs for segment in run.segments])
    starved = waits is not None and waits > STARVED_SHARE
    sized = _cpu_size(runs, role, view.now_ms)
    if sized is None and starved:
        sized = _cpu_size((view.run,), role, view.now_ms)
    if sized is None:
        return []
    value = sized.value
    if starved and was is not None:
        # Never less than now, and more if that is used up.
        used_up = sized.p95 >= _USED_UP * was
        value = max(round_up(was * RAISE, _STEP_MILLIS) if used_up else was, value)
    largest = max((node.cpu_millis for node in view.cluster.nodes), default=0)
    value = min(value, largest or value)
    if was is not None and abs(value - was) < UNCHANGED * was:
        return []
    obstacle = obstacle_to_lower(view) if was is not None and value < was else ""
    arguments: Arguments = {"runs": sized.runs}
    if starved:
        arguments |= {"data_percent": round(100 * (waits or 0)), "p95_millis": sized.p95}
        code = "LoaderStarved"
    elif obstacle:
        arguments |= {"level": level, "estimate_millis": value, "because": obstacle}
        code = "NotLowered"
    else:
        arguments |= {
            "level": level,
            "p95_millis": sized.p95,
            "margin_percent": round(100 * (MARGIN - 1)),
            "replicas": size.replicas,
            "saved_millis": (was - value) * size.replicas if was is not None else 0,
        }
        code = "CpuUse"
    wider = range_factor(level)
    return [
        Advice(
            what=What.CPU,
            role=role,
            unit=Unit.MILLICORES,
            was=was,
            value=was if obstacle else value,
            low=min(sized.low, value) / wider,
            high=max(sized.high, value) * wider,
            reason=because(code, **arguments),
            evidence=tuple(run.job.uid for run in runs) or (view.run.job.uid,),
            confidence=confidence_of(view.similar),
        )
    ]


_LEAST_SECONDS = 600
_WARM_UP_S = 300
"""Caches fill at the start of a run; that is no leak."""
_HOUR_S = 3600


def _growing_memory(view: AdviserView) -> list[Advice]:
    """A warning for each role with a rank that will reach its limit before the job ends."""
    rest_s = expected_rest_s(view)
    ranks: dict[tuple[str, int], list[MemorySample]] = {}
    for sample in view.memory_samples:
        ranks.setdefault((sample.role, sample.rank), []).append(sample)
    first: dict[str, Advice] = {}
    for (role, rank), samples in sorted(ranks.items()):
        size = role_size(view.run.job, role)
        if rest_s is None or size is None or not size.memory_bytes:
            continue
        if advice := _warn(view, rank, samples, size.memory_bytes, rest_s):
            first[role] = min(first.get(role, advice), advice, key=lambda item: item.value or 0)
    return list(first.values())


def _warn(
    view: AdviserView, rank: int, samples: list[MemorySample], limit_bytes: int, rest_s: float
) -> Advice | None:
    started_ms = view.run.job.started_ms
    begin_ms = samples[0].at_ms if started_ms is None else started_ms
    settled = [sample for sample in samples if sample.at_ms >= begin_ms + 1000 * _WARM_UP_S]
    if len(settled) < 2 or settled[-1].at_ms - settled[0].at_ms < 1000 * _LEAST_SECONDS:
        return None
    origin_ms = settled[0].at_ms
    trend = fit_trend(
        [(sample.at_ms - origin_ms) / 1000 for sample in settled],
        [float(sample.memory_bytes) for sample in settled],
    )
    if trend is None or not trend.grows:
        return None
    since_s = (view.now_ms - settled[-1].at_ms) / 1000
    used = trend.level + trend.slope * since_s
    seconds = max((limit_bytes - used) / trend.slope, 0.0)
    if seconds >= rest_s:
        return None
    # The uncertainty of the slope: the noise against the rise of the line.
    spread = min(max(2 * trend.spread / max(trend.rise, 1.0) / math.sqrt(10), 0.05), 0.5)
    return Advice(
        what=What.WARNING,
        role=samples[0].role,
        rank=rank,
        target="GrowingMemory",
        unit=Unit.SECONDS,
        value=seconds,
        low=seconds * (1 - spread),
        high=seconds * (1 + spread),
        reason=because(
            "GrowingMemory",
            rank=rank,
            limit_bytes=limit_bytes,
            used_bytes=round(used),
            bytes_per_hour=round(trend.slope * _HOUR_S),
            runs_out_ms=view.now_ms + round(seconds * 1000),
            seconds=round(seconds),
            needed_bytes=round(used + trend.slope * rest_s),
        ),
        evidence=(view.run.job.uid,),
        confidence=Confidence.HIGH if trend.p_value < 1e-4 else Confidence.MEDIUM,
    )


def advise(view: AdviserView) -> list[Advice]:
    advice: list[Advice] = []
    for role in sorted({size.role for size in view.run.job.roles}):
        if (size := running_size(view.run.job, role)) is not None:
            advice += [*advise_memory(view, size), *advise_cpu(view, size)]
    return advice + _growing_memory(view)
