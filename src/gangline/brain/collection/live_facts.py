"""Digestion of what masters publish: segments, use of memory and CPU, the shape of the model. Pure.

The text comes from a job, which may write anything into it. Each entry is decoded on its own, and
an entry outside of what is physically possible (``facts.belief``) is dropped and counted. What
advice on a running job needs beside the records of the history (minutes of ranks, node checks) is
not stored: a Brain that starts reads the latest document again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    TrainingFacts,
)
from gangline.brain.advisers.stragglers import SLOW
from gangline.brain.advisers.view import DevicePeak, NodeCheckResult
from gangline.brain.facts.belief import believe, believe_report
from gangline.brain.facts.records import RankSpeed, Run

MAX_FACTS_BYTES = 64 * 1024
MAX_PODS = 10_000
MAX_SHORTAGES = 100
WINDOW_MS = 60_000
MAX_WINDOWS = 60
FRESH_MS = 15 * 60_000
"""Older minutes say nothing about the present speed of a node."""
_LONGEST_STEP_S = 86_400.0
_MAX_RANK = 10**6
_MAX_PARAMETERS = 10**15

NO_FACTS = TrainingFacts(v=FACTS_VERSION)

T = TypeVar("T")
S = TypeVar("S", PodFacts, NodeFacts)


@dataclass(frozen=True, slots=True)
class DigestedFacts:
    """The believable entries of one document."""

    facts: TrainingFacts = NO_FACTS
    windows: tuple[RankSpeed, ...] = ()
    """Minutes of ranks, whose nodes are not known yet."""
    dropped: int = 0
    """Number of entries that were not believed."""
    problem: str = ""
    """Why nothing of the document was read; empty if it was."""


def digest_facts(text: str | bytes, now_ms: int) -> DigestedFacts:
    """Return the believable entries of a document. Never raises."""
    if not text:
        return DigestedFacts()
    if len(text) > MAX_FACTS_BYTES:
        return DigestedFacts(problem=f"has {len(text)} bytes, at most {MAX_FACTS_BYTES} are read")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return DigestedFacts(problem=f"is not JSON: {error}")
    if not isinstance(document, dict):
        return DigestedFacts(problem="is not a JSON object")
    if document.get("v") != FACTS_VERSION:
        found = document.get("v")
        return DigestedFacts(problem=f"has version {found!r}, this program reads {FACTS_VERSION}")
    return _Digestion(document, now_ms).digested()


class _Digestion:
    """Entries of one document, and the number of those that were not believed."""

    def __init__(self, document: dict[str, Any], now_ms: int) -> None:
        self._document, self._now_ms = document, now_ms
        self._dropped = 0

    def digested(self) -> DigestedFacts:
        since = self._document.get("windowsSince")
        since_ms = since if isinstance(since, int) else 0
        minutes = self._entries("ranks", RankFacts, lambda rank: self._minutes(rank, since_ms))
        segments = self._entries("segments", SegmentFacts, self._segment, -FACTS_MAX_SEGMENTS)
        shortages = self._entries(
            "deviceShortages", DeviceShortageFacts, self._shortage, -MAX_SHORTAGES
        )
        facts = TrainingFacts(
            v=FACTS_VERSION,
            segments=tuple(segments),
            pods=tuple(self._entries("pods", PodFacts, _pod)),
            nodes=tuple(self._entries("nodes", NodeFacts, believe_report)),
            device_shortages=tuple(shortages),
            model=next(self._entries("model", ModelShapeFacts, _model), None),
            tunes_batch=self._document.get("tunesBatch") is True,
        )
        windows = tuple(window for windows in minutes for window in windows)
        return DigestedFacts(facts, windows, self._dropped)

    def _entries(
        self,
        name: str,
        kind: type[Any],
        believable: Callable[[Any], T | None],
        most: int = MAX_PODS,
    ) -> Iterator[T]:
        """Yield entries under a name: the first of them, or the last if ``most`` is negative."""
        entries = self._document.get(name)
        if entries is None:
            return
        entries = [entries] if isinstance(entries, dict) and kind is ModelShapeFacts else entries
        if not isinstance(entries, list):
            self._dropped += 1
            return
        for entry in entries[:most] if most > 0 else entries[most:]:
            try:
                record = believable(msgspec.convert(entry, kind))
            except (msgspec.ValidationError, ValueError, OverflowError):
                record = None
            if record is None:
                self._dropped += 1
            else:
                yield record

    def _minutes(self, rank: RankFacts, since_ms: int) -> list[RankSpeed] | None:
        """Return the minutes of one node; None if they are not believable."""
        if not (
            rank.name
            and 0 <= rank.rank < _MAX_RANK
            and 0 < since_ms <= self._now_ms + FRESH_MS
            and len(rank.compute_seconds) <= MAX_WINDOWS
            and all(x is None or 1e-6 <= x <= _LONGEST_STEP_S for x in rank.compute_seconds)
            and all(x is None or 0 <= x <= _LONGEST_STEP_S for x in rank.sync_seconds)
        ):
            return None
        waits: Sequence[float | None] = rank.sync_seconds or [None] * len(rank.compute_seconds)
        return [
            RankSpeed(
                pod=rank.name,
                rank=rank.rank,
                gpu_model=rank.device_model[:128],
                window_ms=since_ms + index * WINDOW_MS,
                compute_s=compute,
                wait_s=wait,
            )
            for index, (compute, wait) in enumerate(zip(rank.compute_seconds, waits, strict=False))
            if compute is not None
        ]

    def _segment(self, segment: SegmentFacts) -> SegmentFacts | None:
        believed, impossible = believe(segment, self._now_ms)
        self._dropped += bool(believed and impossible)
        return believed

    def _shortage(self, shortage: DeviceShortageFacts) -> DeviceShortageFacts | None:
        believed = believe_report(shortage)
        return believed and msgspec.structs.replace(believed, at=min(believed.at, self._now_ms))


def _pod(pod: PodFacts) -> PodFacts | None:
    believed = believe_report(pod)
    is_whole = believed == pod and pod.since <= pod.until
    return believed if is_whole else None


def _model(shape: ModelShapeFacts) -> ModelShapeFacts | None:
    amounts = [x for x in msgspec.structs.astuple(shape) if x is not None]
    return shape if amounts and all(0 < x < _MAX_PARAMETERS for x in amounts) else None


def rank_speeds(
    windows: Iterable[RankSpeed], node_of: Callable[[str], str], now_ms: int
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
    segments: Iterable[SegmentFacts],
    known_memory: Callable[[str], int | None],
    shortages: Iterable[DeviceShortageFacts] = (),
    remembered: Iterable[DeviceShortageFacts] = (),
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
    for segment in sorted(segments, key=lambda segment: segment.until):
        for model, peak in segment.memory_peak.items():
            memory = segment.device_memory.get(model) or known_memory(model)
            memories[model] = memory or 0
            if segment.micro_batch is None or not memory or peak > memory:
                continue
            before = peaks.get((model, segment.micro_batch))
            last_ms[model, segment.micro_batch] = segment.until
            peaks[model, segment.micro_batch] = DevicePeak(
                gpu_model=model,
                micro_batch=segment.micro_batch,
                peak_bytes=max(peak, before.peak_bytes if before else 0),
                memory_bytes=memory,
            )
    own = {(shortage.device_model, shortage.micro_batch): shortage.at for shortage in shortages}
    for shortage in (*remembered, *shortages):
        key = (shortage.device_model, shortage.micro_batch)
        memory = memories.get(shortage.device_model) or known_memory(shortage.device_model) or 0
        peaks[key] = DevicePeak(
            gpu_model=shortage.device_model,
            micro_batch=shortage.micro_batch,
            peak_bytes=memory,
            memory_bytes=memory,
            oom=True,
            at_ms=own.get(key),
        )
        last_ms[key] = max(own.get(key, 0), last_ms.get(key, 0))
    return tuple(peaks[key] for key in sorted(peaks, key=lambda key: last_ms[key]))


def ended_by_shortage(runs: Iterable[Run]) -> list[DeviceShortageFacts]:
    """Return the micro-batches at which runs have ended for lack of device memory.

    The micro-batch is known where a run had only one.
    """
    shortages = []
    for run in runs:
        ended = [
            pod.ended_ms or pod.started_ms for pod in run.pods if pod.cause == DEVICE_OUT_OF_MEMORY
        ]
        had = {(segment.device_model, segment.micro_batch) for segment in run.segments}
        if not ended or len(had) != 1:
            continue
        ((model, micro_batch),) = had
        if model and micro_batch and "," not in model:
            shortages.append(DeviceShortageFacts(model, micro_batch, max(ended)))
    return shortages


def restart_seconds(segments: Iterable[SegmentFacts]) -> float | None:
    """Return the longest time that one restart of the job took; None before the first."""
    restarts = [segment.restarts for segment in segments if segment.restarts]
    costs = [math.fsum(one.seconds.values()) / one.count for one in restarts if one.count]
    return max(costs, default=None)
