"""Which facts are possible. What is not possible is dropped and counted before it is stored.

Masters, scripts and clocks report whatever they report. A record whose identity, times or essential
numbers are impossible is dropped as a unit. Another impossible value becomes unknown: None, or an
empty text. Text with control characters, with spaces at its ends (MySQL ignores those when it
compares), or longer than its column is impossible as well.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from gangline.api.jobs.training_facts import (
    DISTURBED,
    GOOD,
    WARM_UP,
    DeviceShortageFacts,
    ModelShapeFacts,
    NodeFacts,
    PodFacts,
    RankFacts,
    RestartFacts,
    SegmentFacts,
    StepSeconds,
)
from gangline.brain.facts.records import PlannedSize, PodRun, RecordedJob, Wishes

S = TypeVar("S", bound=msgspec.Struct)

CLUSTER_LENGTH: Final = 128
UID_LENGTH: Final = 64
NAMESPACE_LENGTH: Final = 63
NAME_LENGTH: Final = 253
"""Names of objects and of users."""
WORD_LENGTH: Final = 64
"""Kinds, roles, strategies, data types."""
DIGEST_LENGTH: Final = 128
"""Digests, tags, models of devices."""
REPOSITORY_LENGTH: Final = 512

MAX_PARTS: Final = 64
"""Sizes of roles of one job."""
MAX_WISHES_BYTES: Final = 4_096
FUTURE_MS: Final = 10 * 60_000
"""A segment that ends later than this from now is stored as disturbed."""

_EARLIEST_MS: Final = 946_684_800_000  # the year 2000
_LATEST_MS: Final = 4_102_444_800_000  # the year 2100
_MAX_INTEGER: Final = 2**53
_MAX_REAL: Final = 1e60
_MAX_BYTES: Final = 2**46
"""64 TiB, more than a machine has."""
_MAX_MILLICORES: Final = 10_000_000
_MAX_COUNT: Final = 1_000_000
"""Processes, replicas, ranks, devices."""
_MIN_STEP_S: Final = 1e-5
_MAX_STEP_S: Final = 7 * 86_400.0

_MAX_PARAMETERS: Final = 10**15
_MAX_MODELS: Final = 16
MAX_WINDOWS: Final = 60
"""Minutes of one rank."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_IMPOSSIBLE: Final = object()

Range = tuple[float, float]
_TIME: Final[Range] = (_EARLIEST_MS, _LATEST_MS)
_COUNT: Final[Range] = (0, _MAX_COUNT)
_BYTES: Final[Range] = (1, _MAX_BYTES)
_CPU: Final[Range] = (0, _MAX_MILLICORES)
_ANY: Final[Range] = (0, _MAX_INTEGER)
_SECONDS: Final[Range] = (0.0, _MAX_STEP_S)

_RANGES: Final[Mapping[str, Range]] = {
    **dict.fromkeys(("since", "until", "at"), _TIME),
    **dict.fromkeys(("submitted_ms", "started_ms", "finished_ms", "ended_ms"), _TIME),
    "since_ms": (0, _LATEST_MS),
    "day": (10_957, 47_482),
    **dict.fromkeys(("workers_min", "workers_max", "workers_asked", "replicas", "rank"), _COUNT),
    **dict.fromkeys(("restarts", "number", "gpus", "jobs", "loader_workers"), _COUNT),
    **dict.fromkeys(("unit", "nodes", "procs"), (1, _MAX_COUNT)),
    **dict.fromkeys(("steps", "micro_batch", "accumulation", "global_batch"), (1, _MAX_INTEGER)),
    **dict.fromkeys(("memory_bytes", "limit_memory_bytes", "peak_memory_bytes"), _BYTES),
    **dict.fromkeys(("cpu_millis", "cpu_millis_p50", "cpu_millis_p95", "cpu_millis_max"), _CPU),
    **dict.fromkeys(("cpu_p50_millis", "cpu_p95_millis", "cpu_max_millis"), _CPU),
    **dict.fromkeys(("compute_seconds", "sync_seconds", "data_seconds"), _SECONDS),
    **dict.fromkeys(("save_seconds", "save_interval_seconds"), (1e-9, _MAX_STEP_S)),
    **dict.fromkeys(("grad_sqr", "grad_var", "m2"), (0.0, _MAX_REAL)),
    **dict.fromkeys(ModelShapeFacts.__struct_fields__, (1, _MAX_PARAMETERS)),
    "mean": (_MIN_STEP_S, _MAX_STEP_S),
    "factor": (1e-6, 1e6),
    "score": (0.001, 1_000.0),
}
"""By the name of a field. Other numbers are between 0 and 2^53, or finite and below 1e60."""

_LENGTHS: Final[Mapping[str, int]] = {
    "cluster": CLUSTER_LENGTH,
    "uid": UID_LENGTH,
    "namespace": NAMESPACE_LENGTH,
    **dict.fromkeys(("name", "stem", "owner", "queue", "node", "cause"), NAME_LENGTH),
    "repository": REPOSITORY_LENGTH,
    **dict.fromkeys(("tag", "digest", "command_digest", "spec_digest"), DIGEST_LENGTH),
    **dict.fromkeys(("gpu_model", "device_model"), DIGEST_LENGTH),
}
"""Other texts are words."""

_ESSENTIAL: Final = frozenset(
    {(PlannedSize, "rank"), (StepSeconds, "m2"), (PodFacts, "samples"), (NodeFacts, "factor")}
)
"""Without these, and fields that have no default, a record has no meaning. Texts among them are not
empty."""


def believe(record: S, now_ms: int) -> tuple[S | None, list[str]]:
    """Return what is possible of a record, or None, and the names of what was dropped."""
    believed, dropped = _believe(record)
    checked: Any = believed
    match believed:
        case RecordedJob(finished_ms=int(finished_ms), submitted_ms=submitted_ms):
            # Clocks of two machines.
            checked = replace(believed, finished_ms=max(finished_ms, submitted_ms))
        case SegmentFacts():
            checked = _believe_segment(believed, dropped, now_ms)
        case PodRun(ended_ms=int(ended_ms), started_ms=started_ms) if ended_ms < started_ms:
            checked = None
            dropped.append("PodRun.ended_ms")
        case PodFacts() if dropped or believed.until < believed.since:
            checked = None
            dropped.append("PodFacts.until")
        case DeviceShortageFacts():
            checked = replace(believed, at=min(believed.at, now_ms))
        case RankFacts():
            means, waits = believed.compute_seconds, believed.sync_seconds
            if (
                len(means) > MAX_WINDOWS
                or any(x is not None and not 0 < x <= _MAX_STEP_S for x in means)
                or any(x is not None and not 0 <= x <= _MAX_STEP_S for x in waits)
            ):
                checked = None
                dropped.append("RankFacts.compute_seconds")
    return checked, dropped


def _believe_segment(segment: SegmentFacts, dropped: list[str], now_ms: int) -> SegmentFacts | None:
    if segment.procs < segment.nodes or segment.until < segment.since:
        dropped.append("SegmentFacts.until")
        return None
    is_known = segment.quality in (GOOD, WARM_UP) and segment.until <= now_ms + FUTURE_MS
    if (restarts := segment.restarts) is not None:
        lost = {phase: s for phase, s in restarts.seconds.items() if 0 <= s <= _MAX_STEP_S}
        restarts = RestartFacts(restarts.count, lost)
    return replace(
        segment,
        quality=segment.quality if is_known else DISTURBED,
        memory_peak=_amounts(segment.memory_peak),
        device_memory=_amounts(segment.device_memory),
        restarts=restarts,
    )


def _amounts(reported: Mapping[str, int]) -> dict[str, int]:
    possible = {name: x for name, x in reported.items() if 0 < x < _MAX_BYTES and len(name) < 128}
    return dict(sorted(possible.items())[:_MAX_MODELS])


def possible_text(text: str, length: int) -> bool:
    """Whether every database stores and compares ``text`` as it is."""
    return len(text) <= length and text == text.strip() and not _CONTROL.search(text)


def _believe(record: S) -> tuple[S | None, list[str]]:
    """Return what is possible of a record and its parts, each by itself."""
    kind = type(record)
    dropped: list[str] = []
    changed: dict[str, Any] = {}
    for field in _fields(kind):
        value = getattr(record, field.name)
        essential = field.required or (kind, field.name) in _ESSENTIAL
        believed, names = _believe_value(field.name, value)
        dropped += names
        if believed is _IMPOSSIBLE or (value == "" and essential):
            dropped.append(f"{kind.__name__}.{field.name}")
            if essential:
                return None, dropped
            is_made = field.default is msgspec.NODEFAULT
            changed[field.name] = field.default_factory() if is_made else field.default
        elif believed is not value:
            changed[field.name] = believed
    return (replace(record, **changed) if changed else record), dropped


def _believe_value(name: str, value: Any) -> tuple[Any, list[str]]:
    """Return what is possible of a field, or ``_IMPOSSIBLE``, and what of its parts is not."""
    match value:
        case msgspec.Struct() if not isinstance(value, Wishes):
            believed, dropped = _believe(value)
            return _IMPOSSIBLE if believed is None else believed, dropped
        case tuple() if value and isinstance(value[0], msgspec.Struct):
            parts = [_believe(part) for part in value[:MAX_PARTS]]
            dropped = [missing for _, names in parts for missing in names]
            dropped += [f"{name}[{MAX_PARTS}]"] if len(value) > MAX_PARTS else []
            possible = tuple(part for part, _ in parts if part is not None)
            return (possible if dropped else value), dropped
        case tuple():
            return value, []
    return (value if _possible(name, value) else _IMPOSSIBLE), []


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _possible(name: str, value: object) -> bool:
    limits = _RANGES.get(name)
    match value:
        case bool() | None:
            return True
        case str():
            return possible_text(value, _LENGTHS.get(name, WORD_LENGTH))
        case int():
            low, high = limits or _ANY
            return low <= value <= min(high, _MAX_INTEGER)
        case float():
            low, high = limits or (-_MAX_REAL, _MAX_REAL)
            return math.isfinite(value) and low <= value <= high
        case _:
            return _encodable(value)


def _encodable(value: object) -> bool:
    try:
        return len(msgspec.json.encode(value)) <= MAX_WISHES_BYTES
    except (TypeError, ValueError, UnicodeError):
        return False
