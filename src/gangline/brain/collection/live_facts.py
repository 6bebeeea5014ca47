"""Digestion of what masters publish: segments, use of memory and CPU, the shape of the model. Pure.

The text comes from a job, which may write anything into it. Each entry is decoded on its own, and
an entry outside of what is physically possible is dropped and counted. What advice on a running job
needs beside the records of the history (``SegmentDetails``, windows, checks) is not stored: a Brain
that starts reads the latest document again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.training_facts import (
    FACTS_MAX_SEGMENTS,
    FACTS_VERSION,
    DeviceShortageFacts,
    ModelShapeFacts,
    NodeFacts,
    PodFacts,
    RankFacts,
    SegmentFacts,
)
from gangline.brain.advisers.stragglers import SLOW
from gangline.brain.advisers.view import DevicePeak, NodeCheckResult
from gangline.brain.facts.records import (
    DeviceShortage,
    ModelFacts,
    Quality,
    RankSpeed,
    Run,
    Segment,
)

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
    lost = [second for second in restarts.seconds.values() if _is_time(second)] if restarts else []
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


class RankWindow(RankSpeed, frozen=True, kw_only=True):
    """One minute of one pod, whose node is not known yet."""

    pod: str
    node: str = ""


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
        msgspec.structs.replace(window, node=node)
        for window in windows
        if now_ms - window.window_ms <= FRESH_MS and (node := node_of(window.pod))
    )


def node_checks(
    checks: Iterable[NodeFacts], node_of: Callable[[str], str]
) -> tuple[NodeCheckResult, ...]:
    """Return the results of node checks by the node of the pod, oldest first."""
    results = [
        NodeCheckResult(
            node=node,
            at_ms=check.at,
            slow=not check.passed or (check.factor or 0.0) >= 1 + SLOW,
        )
        for check in checks
        if (node := node_of(check.name))
    ]
    return tuple(sorted(results, key=lambda result: result.at_ms))


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
        known_memory: returns the memory of a device model that masters do not report, None if it
            is not known either.
        remembered: those of its family, which say nothing about its present state.
    """
    peaks: dict[tuple[str, int], DevicePeak] = {}
    last_ms: dict[tuple[str, int], int] = {}
    memories: dict[str, int] = {}
    for detail in sorted(details, key=lambda one: one.until_ms):
        reported = dict(detail.device_memory)
        for model, peak in detail.device_peaks:
            memory = reported.get(model) or known_memory(model)
            memories[model] = memory or 0
            if detail.micro_batch is None or not memory or peak > memory:
                continue
            before = peaks.get((model, detail.micro_batch))
            last_ms[model, detail.micro_batch] = detail.until_ms
            peaks[model, detail.micro_batch] = DevicePeak(
                gpu_model=model,
                micro_batch=detail.micro_batch,
                peak_bytes=max(peak, before.peak_bytes if before else 0),
                memory_bytes=memory,
            )
    own = {(shortage.gpu_model, shortage.micro_batch): shortage.at_ms for shortage in shortages}
    for shortage in (*remembered, *shortages):
        key = (shortage.gpu_model, shortage.micro_batch)
        memory = memories.get(shortage.gpu_model) or known_memory(shortage.gpu_model) or 0
        peaks[key] = DevicePeak(
            gpu_model=shortage.gpu_model,
            micro_batch=shortage.micro_batch,
            peak_bytes=memory,
            memory_bytes=memory,
            oom=True,
            at_ms=own.get(key),
        )
        last_ms[key] = max(own.get(key, 0), last_ms.get(key, 0))
    return tuple(peaks[key] for key in sorted(peaks, key=lambda key: last_ms[key]))


def ended_by_shortage(runs: Iterable[Run]) -> list[DeviceShortage]:
    """Return the micro-batches at which runs have ended for lack of device memory.

    The micro-batch is known where a run had only one.
    """
    shortages = []
    for run in runs:
        ended = [
            pod.ended_ms or pod.started_ms for pod in run.pods if pod.cause == DEVICE_OUT_OF_MEMORY
        ]
        had = {(segment.gpu_model, segment.micro_batch) for segment in run.segments}
        if not ended or len(had) != 1:
            continue
        ((model, micro_batch),) = had
        if model and micro_batch and "," not in model:
            shortages.append(
                DeviceShortage(gpu_model=model, micro_batch=micro_batch, at_ms=max(ended))
            )
    return shortages


def restart_seconds(details: Iterable[SegmentDetails]) -> float | None:
    """Return the longest time that one restart of the job took; None before the first."""
    costs = [detail.lost_s / detail.restarts for detail in details if detail.restarts]
    return max(costs, default=None)


def _is_step(seconds: float) -> bool:
    return _STEP_RANGE_S[0] <= seconds <= _STEP_RANGE_S[1]


def _is_time(seconds: float) -> bool:
    return 0 <= seconds <= _STEP_RANGE_S[1]


def _seconds(value: float | None) -> float | None:
    return value if value is not None and 0 < value <= _STEP_RANGE_S[1] else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= _MAX_COUNT else None


def _amounts(reported: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    believable = {name[:128]: x for name, x in reported.items() if 0 < x < _MAX_BYTES}
    return tuple(sorted(believable.items())[:_MAX_MODELS])


MAX_FACTS_BYTES = 64 * 1024
MAX_PODS = 10_000
MAX_SHORTAGES = 100
FUTURE_MS = 600_000
"""A segment that ends later than this after our time was measured by a wrong clock."""
STEP_RANGE_S = (1e-5, 86_400.0)
_FACTS_DIGEST_MAX_COUNT = 10**9


T = TypeVar("T")


@dataclass(slots=True)
class DigestedFacts:
    """The records of one document."""

    segments: list[Segment] = field(default_factory=list)
    pods: list[PodFacts] = field(default_factory=list)
    nodes: list[NodeFacts] = field(default_factory=list)
    details: list[SegmentDetails] = field(default_factory=list)
    """Of the segments, in the same order."""
    windows: list[RankWindow] = field(default_factory=list)
    shortages: list[DeviceShortage] = field(default_factory=list)
    model: ModelFacts | None = None
    tunes_batch: bool = False
    tuning_version: int | None = None
    dropped: int = 0
    """Number of entries that were not believed."""
    problem: str = ""
    """Why nothing of the document was read; empty if it was."""


def digest_facts(text: str | bytes, now_ms: int) -> DigestedFacts:
    """Return the believable entries of a document. Never raises."""
    facts = DigestedFacts()
    if len(text) > MAX_FACTS_BYTES:
        facts.problem = f"has {len(text)} bytes, at most {MAX_FACTS_BYTES} are read"
        return facts
    if not text:
        return facts
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        facts.problem = f"is not JSON: {error}"
        return facts
    if not isinstance(document, dict):
        facts.problem = "is not a JSON object"
        return facts
    if document.get("v") != FACTS_VERSION:
        facts.problem = f"has version {document.get('v')!r}, this program reads {FACTS_VERSION}"
        return facts
    entries = _entries(document, "segments", facts)[-FACTS_MAX_SEGMENTS:]
    segments = list(_convert(entries, lambda e: _segment(e, now_ms), facts))
    facts.segments = [segment for segment, _ in segments]
    facts.details = [details for _, details in segments]
    pods = _entries(document, "pods", facts)[:MAX_PODS]
    facts.pods = list(_convert(pods, _pod, facts))
    nodes = _entries(document, "nodes", facts)[:MAX_PODS]
    facts.nodes = list(_convert(nodes, _node, facts))
    since = document.get("windowsSince")
    since_ms = since if isinstance(since, int) else 0
    ranks = _entries(document, "ranks", facts)[:MAX_PODS]
    for windows in _convert(
        ranks, lambda e: rank_windows(msgspec.convert(e, RankFacts), since_ms, now_ms), facts
    ):
        facts.windows += windows
    shortages = _entries(document, "deviceShortages", facts)[-MAX_SHORTAGES:]
    facts.shortages = list(_convert(shortages, lambda e: _shortage(e, now_ms), facts))
    if document.get("model") is not None:
        facts.model = next(_convert([document["model"]], _model, facts), None)
    facts.tunes_batch = document.get("tunesBatch") is True
    version = document.get("tuningVersion")
    facts.tuning_version = version if isinstance(version, int) else None
    return facts


def _entries(document: dict[str, Any], name: str, facts: DigestedFacts) -> list[Any]:
    entries = document.get(name, [])
    if isinstance(entries, list):
        return entries
    facts.dropped += 1
    return []


def _convert(
    entries: list[Any], convert: Callable[[Any], T | None], facts: DigestedFacts
) -> Iterator[T]:
    for entry in entries:
        try:
            record = convert(entry)
        except (msgspec.ValidationError, ValueError, OverflowError):
            record = None
        if record is None:
            facts.dropped += 1
        else:
            yield record


def _segment(entry: Any, now_ms: int) -> tuple[Segment, SegmentDetails] | None:
    facts = msgspec.convert(entry, SegmentFacts)
    step = facts.step_seconds
    believable = (
        0 < facts.since < facts.until
        and 0 <= facts.round < _FACTS_DIGEST_MAX_COUNT
        and 0 < facts.steps < _FACTS_DIGEST_MAX_COUNT
        and 0 < facts.nodes <= facts.procs < _FACTS_DIGEST_MAX_COUNT
        and STEP_RANGE_S[0] <= step.mean <= STEP_RANGE_S[1]
        and 0 <= step.m2 < math.inf
        and all(
            x is None or 0 < x < _FACTS_DIGEST_MAX_COUNT * 1000
            for x in (facts.micro_batch, facts.accumulation, facts.global_batch)
        )
    )
    if not believable:
        return None
    quality = Quality(facts.quality) if facts.quality in set(Quality) else Quality.DISTURBED
    if facts.until > now_ms + FUTURE_MS:
        quality = Quality.DISTURBED
    segment = Segment(
        round=facts.round,
        since_ms=facts.since,
        until_ms=facts.until,
        nodes=facts.nodes,
        procs=facts.procs,
        gpu_model=facts.device_model[:128],
        micro_batch=facts.micro_batch,
        accumulation=facts.accumulation,
        global_batch=facts.global_batch,
        steps=facts.steps,
        step_first=facts.step_first,
        step_last=facts.step_last,
        step_mean_us=step.mean * 1e6,
        step_m2=step.m2 * 1e12,
        compute_us=_micros(facts.compute_seconds),
        sync_us=_micros(facts.sync_seconds),
        data_us=_micros(facts.data_seconds),
        grad_sqr=_positive(facts.grad_sqr),
        grad_var=_positive(facts.grad_var),
        quality=quality,
    )
    return segment, segment_details(facts)


def _micros(seconds: float | None) -> float | None:
    return seconds * 1e6 if seconds is not None and 0 <= seconds <= STEP_RANGE_S[1] else None


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < 1e30 else None


def _pod(entry: Any) -> PodFacts | None:
    facts = msgspec.convert(entry, PodFacts)
    amounts = (facts.peak_memory_bytes, facts.cpu_millis_max)
    believable = (
        facts.name
        and 0 <= facts.rank < _FACTS_DIGEST_MAX_COUNT
        and 0 < facts.since <= facts.until
        and 0 <= facts.samples < _FACTS_DIGEST_MAX_COUNT
        and all(x is None or 0 < x < _MAX_BYTES for x in amounts)
    )
    return facts if believable else None


def _node(entry: Any) -> NodeFacts | None:
    facts = msgspec.convert(entry, NodeFacts)
    believable = facts.name and facts.at > 0 and (facts.factor is None or 0 < facts.factor < 1e6)
    return facts if believable else None


def _shortage(entry: Any, now_ms: int) -> DeviceShortage | None:
    facts = msgspec.convert(entry, DeviceShortageFacts)
    if not (
        facts.device_model and 0 < facts.micro_batch < _FACTS_DIGEST_MAX_COUNT and facts.at > 0
    ):
        return None
    return DeviceShortage(
        gpu_model=facts.device_model[:128],
        micro_batch=facts.micro_batch,
        at_ms=min(facts.at, now_ms),
    )


def _model(entry: Any) -> ModelFacts | None:
    shape = msgspec.convert(entry, ModelShapeFacts)
    amounts = (shape.params, shape.layers, shape.hidden, shape.heads, shape.vocab, shape.sequence)
    if not any(amounts) or not all(x is None or 0 < x < 10**15 for x in amounts):
        return None
    return ModelFacts(
        parameters=shape.params,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        vocab=shape.vocab,
        sequence=shape.sequence,
    )
