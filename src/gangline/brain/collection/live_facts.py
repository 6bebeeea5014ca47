"""What advice on a running job needs beside the records of the history. Pure.

These facts are read from the latest document of the job's master, and are not stored: a Brain that
starts reads the document again. A document of an earlier release has none of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.training_facts import NodeFacts, RankFacts, SegmentFacts
from gangline.brain.advisers.stragglers import SLOW
from gangline.brain.advisers.view import DevicePeak, NodeCheckResult
from gangline.brain.facts.records import DeviceShortage, RankSpeed, Run

WINDOW_MS = 60_000
MAX_WINDOWS = 60
FRESH_MS = 15 * 60_000
"""Older minutes say nothing about the present speed of a node."""
_STEP_RANGE_S = (1e-6, 86_400.0)
_MAX_COUNT = 10**6
_MAX_MODELS = 16
_MAX_BYTES = 1 << 50


class SegmentDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment shows beside its steps."""

    round: int
    since_ms: int
    until_ms: int
    micro_batch: int | None = None
    loader_workers: int | None = None
    save_s: float | None = None
    save_interval_s: float | None = None
    saves_adapt: bool = False
    """True if the trainer chooses the interval itself, from the rate of failures."""
    device_peaks: tuple[tuple[str, int], ...] = ()
    """Highest device memory in use, by device model."""
    device_memory: tuple[tuple[str, int], ...] = ()
    """Memory of one device, by device model."""
    restarts: int = 0
    lost_s: float = 0.0
    """Time that was no training since the segment before."""


def segment_details(facts: SegmentFacts) -> SegmentDetails:
    """Return the believable details of a segment."""
    restarts = facts.restarts
    lost = [each for each in restarts.seconds.values() if _is_time(each)] if restarts else []
    return SegmentDetails(
        round=facts.round,
        since_ms=facts.since,
        until_ms=facts.until,
        micro_batch=facts.micro_batch,
        loader_workers=_count(facts.loader_workers),
        save_s=_seconds(facts.save_seconds),
        save_interval_s=_seconds(facts.save_interval_seconds),
        saves_adapt=facts.saves_adapt is True,
        device_peaks=_amounts(facts.memory_peak),
        device_memory=_amounts(facts.device_memory),
        restarts=max(0, restarts.count) if restarts else 0,
        lost_s=math.fsum(lost),
    )


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One minute of one pod."""

    pod: str
    rank: int
    gpu_model: str
    window_ms: int
    compute_us: float
    wait_us: float | None = None


def rank_windows(facts: RankFacts, since_ms: int, now_ms: int) -> list[RankWindow] | None:
    """Return the minutes of one node; None if they are not believable."""
    believable = (
        facts.name
        and 0 <= facts.rank < _MAX_COUNT
        and 0 < since_ms <= now_ms + FRESH_MS
        and len(facts.compute_seconds) <= MAX_WINDOWS
        and all(x is None or _is_step(x) for x in facts.compute_seconds)
        and all(x is None or 0 <= x <= _STEP_RANGE_S[1] for x in facts.sync_seconds)
    )
    if not believable:
        return None
    waits: Sequence[float | None] = facts.sync_seconds or [None] * len(facts.compute_seconds)
    return [
        RankWindow(
            pod=facts.name,
            rank=facts.rank,
            gpu_model=facts.device_model[:128],
            window_ms=since_ms + index * WINDOW_MS,
            compute_us=compute * 1e6,
            wait_us=None if wait is None else wait * 1e6,
        )
        for index, (compute, wait) in enumerate(zip(facts.compute_seconds, waits, strict=False))
        if compute is not None
    ]


def rank_speeds(
    windows: Iterable[RankWindow], node_of: Callable[[str], str], now_ms: int
) -> tuple[RankSpeed, ...]:
    """Return the recent minutes by the node on which the pod runs.

    ``node_of`` returns the node of a pod, empty if it is not known: then the pod is left out, since
    no node could be named.
    """
    return tuple(
        RankSpeed(
            rank=window.rank,
            node=node,
            gpu_model=window.gpu_model,
            window_ms=window.window_ms,
            compute_us=window.compute_us,
            wait_us=window.wait_us,
        )
        for window in windows
        if now_ms - window.window_ms <= FRESH_MS and (node := node_of(window.pod))
    )


def node_checks(
    checks: Iterable[NodeFacts], node_of: Callable[[str], str]
) -> tuple[NodeCheckResult, ...]:
    """Return the results of node checks by the node of the pod, oldest first."""
    found = [
        NodeCheckResult(
            node=node,
            at_ms=check.at,
            slow=not check.passed or (check.factor or 0.0) >= 1 + SLOW,
        )
        for check in checks
        if (node := node_of(check.name))
    ]
    return tuple(sorted(found, key=lambda each: each.at_ms))


def device_peaks(
    details: Iterable[SegmentDetails],
    known_memory: Callable[[str], int | None],
    shortages: Iterable[DeviceShortage] = (),
    remembered: Iterable[DeviceShortage] = (),
) -> tuple[DevicePeak, ...]:
    """Return the highest device memory of each micro-batch and device model; the present one last.

    A micro-batch for which memory has ever been short counts as such, even if it also ran well:
    samples differ in length.

    Args:
        details: of the segments of the job.
        known_memory: returns the memory of a device model that masters do not report, None if it
            is not known either.
        shortages: of the job.
        remembered: those of its family, which say nothing about its present state.
    """
    found: dict[tuple[str, int], DevicePeak] = {}
    last_ms: dict[tuple[str, int], int] = {}
    memories: dict[str, int] = {}
    for each in sorted(details, key=lambda one: one.until_ms):
        reported = dict(each.device_memory)
        for model, peak in each.device_peaks:
            memory = reported.get(model) or known_memory(model)
            memories[model] = memory or 0
            if each.micro_batch is None or not memory or peak > memory:
                continue
            before = found.get((model, each.micro_batch))
            last_ms[model, each.micro_batch] = each.until_ms
            found[model, each.micro_batch] = DevicePeak(
                gpu_model=model,
                micro_batch=each.micro_batch,
                peak_bytes=max(peak, before.peak_bytes if before else 0),
                memory_bytes=memory,
            )
    own = {(each.gpu_model, each.micro_batch): each.at_ms for each in shortages}
    for shortage in (*remembered, *shortages):
        key = (shortage.gpu_model, shortage.micro_batch)
        memory = memories.get(shortage.gpu_model) or known_memory(shortage.gpu_model) or 0
        found[key] = DevicePeak(
            gpu_model=shortage.gpu_model,
            micro_batch=shortage.micro_batch,
            peak_bytes=memory,
            memory_bytes=memory,
            oom=True,
            at_ms=own.get(key),
        )
        last_ms[key] = max(own.get(key, 0), last_ms.get(key, 0))
    return tuple(found[key] for key in sorted(found, key=lambda each: last_ms[each]))


def ended_by_shortage(runs: Iterable[Run]) -> list[DeviceShortage]:
    """Return the micro-batches at which runs have ended for lack of device memory.

    The micro-batch is known where a run had only one.
    """
    found = []
    for run in runs:
        ended = [
            pod.ended_ms or pod.started_ms for pod in run.pods if pod.cause == DEVICE_OUT_OF_MEMORY
        ]
        had = {(each.gpu_model, each.micro_batch) for each in run.segments}
        if not ended or len(had) != 1:
            continue
        ((model, micro_batch),) = had
        if model and micro_batch and "," not in model:
            found.append(DeviceShortage(gpu_model=model, micro_batch=micro_batch, at_ms=max(ended)))
    return found


def restart_seconds(details: Iterable[SegmentDetails]) -> float | None:
    """Return the longest time that one restart of the job took; None before the first."""
    costs = [each.lost_s / each.restarts for each in details if each.restarts]
    return max(costs, default=None)


def _is_step(seconds: float) -> bool:
    return _STEP_RANGE_S[0] <= seconds <= _STEP_RANGE_S[1]


def _is_time(seconds: float) -> bool:
    return 0 <= seconds <= _STEP_RANGE_S[1]


def _seconds(value: float | None) -> float | None:
    return value if value is not None and 0 < value <= _STEP_RANGE_S[1] else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= _MAX_COUNT else None


def _amounts(found: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    believable = {name[:128]: x for name, x in found.items() if 0 < x < _MAX_BYTES}
    return tuple(sorted(believable.items())[:_MAX_MODELS])
