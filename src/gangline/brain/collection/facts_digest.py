"""Digestion of what masters publish: segments, use of memory and CPU, the shape of the model. Pure.

The text comes from a job, which may write anything into it. Each entry is decoded on its own, and
an entry outside of what is physically possible is dropped and counted.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

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
from gangline.brain.collection.live_facts import (
    RankWindow,
    SegmentDetails,
    rank_windows,
    segment_details,
)
from gangline.brain.facts.records import DeviceShortage, ModelFacts, Quality, Segment

MAX_FACTS_BYTES = 64 * 1024
MAX_PODS = 10_000
MAX_SHORTAGES = 100
FUTURE_MS = 600_000
"""A segment that ends later than this after our time was measured by a wrong clock."""
STEP_RANGE_S = (1e-5, 86_400.0)
_MAX_COUNT = 10**9
_MAX_BYTES = 1 << 50

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
    found = DigestedFacts()
    if len(text) > MAX_FACTS_BYTES:
        found.problem = f"has {len(text)} bytes, at most {MAX_FACTS_BYTES} are read"
        return found
    if not text:
        return found
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found.problem = f"is not JSON: {error}"
        return found
    if not isinstance(document, dict):
        found.problem = "is not a JSON object"
        return found
    if document.get("v") != FACTS_VERSION:
        found.problem = f"has version {document.get('v')!r}, this program reads {FACTS_VERSION}"
        return found
    entries = _entries(document, "segments", found)[-FACTS_MAX_SEGMENTS:]
    segments = list(_convert(entries, lambda e: _segment(e, now_ms), found))
    found.segments = [segment for segment, _ in segments]
    found.details = [details for _, details in segments]
    pods = _entries(document, "pods", found)[:MAX_PODS]
    found.pods = list(_convert(pods, _pod, found))
    nodes = _entries(document, "nodes", found)[:MAX_PODS]
    found.nodes = list(_convert(nodes, _node, found))
    since = document.get("windowsSince")
    since_ms = since if isinstance(since, int) else 0
    ranks = _entries(document, "ranks", found)[:MAX_PODS]
    for windows in _convert(ranks, lambda e: _windows(e, since_ms, now_ms), found):
        found.windows += windows
    shortages = _entries(document, "deviceShortages", found)[-MAX_SHORTAGES:]
    found.shortages = list(_convert(shortages, lambda e: _shortage(e, now_ms), found))
    if document.get("model") is not None:
        found.model = next(_convert([document["model"]], _model, found), None)
    found.tunes_batch = document.get("tunesBatch") is True
    version = document.get("tuningVersion")
    found.tuning_version = version if isinstance(version, int) else None
    return found


def _entries(document: dict[str, Any], name: str, found: DigestedFacts) -> list[Any]:
    entries = document.get(name, [])
    if isinstance(entries, list):
        return entries
    found.dropped += 1
    return []


def _convert(
    entries: list[Any], convert: Callable[[Any], T | None], found: DigestedFacts
) -> Iterator[T]:
    for entry in entries:
        try:
            record = convert(entry)
        except (msgspec.ValidationError, ValueError, OverflowError):
            record = None
        if record is None:
            found.dropped += 1
        else:
            yield record


def _segment(entry: Any, now_ms: int) -> tuple[Segment, SegmentDetails] | None:
    facts = msgspec.convert(entry, SegmentFacts)
    step = facts.step_seconds
    believable = (
        0 < facts.since < facts.until
        and 0 <= facts.round < _MAX_COUNT
        and 0 < facts.steps < _MAX_COUNT
        and 0 < facts.nodes <= facts.procs < _MAX_COUNT
        and STEP_RANGE_S[0] <= step.mean <= STEP_RANGE_S[1]
        and 0 <= step.m2 < math.inf
        and all(
            x is None or 0 < x < _MAX_COUNT * 1000
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
        and 0 <= facts.rank < _MAX_COUNT
        and 0 < facts.since <= facts.until
        and 0 <= facts.samples < _MAX_COUNT
        and all(x is None or 0 < x < _MAX_BYTES for x in amounts)
    )
    return facts if believable else None


def _node(entry: Any) -> NodeFacts | None:
    facts = msgspec.convert(entry, NodeFacts)
    believable = facts.name and facts.at > 0 and (facts.factor is None or 0 < facts.factor < 1e6)
    return facts if believable else None


def _windows(entry: Any, since_ms: int, now_ms: int) -> list[RankWindow] | None:
    return rank_windows(msgspec.convert(entry, RankFacts), since_ms, now_ms)


def _shortage(entry: Any, now_ms: int) -> DeviceShortage | None:
    facts = msgspec.convert(entry, DeviceShortageFacts)
    if not (facts.device_model and 0 < facts.micro_batch < _MAX_COUNT and facts.at > 0):
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
        source="reported",
        parameters=shape.params,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        vocab=shape.vocab,
        sequence=shape.sequence,
    )
