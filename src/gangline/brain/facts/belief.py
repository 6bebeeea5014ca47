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
from gangline.brain.facts.records import (
    Image,
    NodeSpeed,
    PlannedSize,
    PodRun,
    RecordedJob,
    RoleSize,
    Wishes,
)

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

MAX_ROLES: Final = 64
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

Range = tuple[float, float]
_TIME: Final[Range] = (_EARLIEST_MS, _LATEST_MS)
_COUNT: Final[Range] = (0, _MAX_COUNT)
_BYTES: Final[Range] = (1, _MAX_BYTES)
_CPU: Final[Range] = (0, _MAX_MILLICORES)
_ANY: Final[Range] = (0, _MAX_INTEGER)
_SECONDS: Final[Range] = (0.0, _MAX_STEP_S)
_SHAPE: Final[Range] = (1, _MAX_PARAMETERS)

_RANGES: Final[Mapping[type[msgspec.Struct], Mapping[str, Range]]] = {
    RecordedJob: {
        "submitted_ms": _TIME,
        "started_ms": _TIME,
        "finished_ms": _TIME,
        "workers_min": _COUNT,
        "workers_max": _COUNT,
        "workers_asked": _COUNT,
        "unit": (1, _MAX_COUNT),
        "restarts": _COUNT,
    },
    RoleSize: {
        "since_ms": (0, _LATEST_MS),
        "replicas": _COUNT,
        "cpu_millis": _CPU,
        "memory_bytes": _BYTES,
        "gpus": _COUNT,
    },
    PlannedSize: {"rank": _COUNT, "cpu_millis": _CPU, "memory_bytes": _BYTES},
    SegmentFacts: {
        "since": _TIME,
        "until": _TIME,
        "nodes": (1, _MAX_COUNT),
        "procs": (1, _MAX_COUNT),
        "steps": (1, _MAX_INTEGER),
        "micro_batch": (1, _MAX_INTEGER),
        "accumulation": (1, _MAX_INTEGER),
        "global_batch": (1, _MAX_INTEGER),
        "compute_seconds": _SECONDS,
        "sync_seconds": _SECONDS,
        "data_seconds": _SECONDS,
        "save_seconds": (1e-9, _MAX_STEP_S),
        "save_interval_seconds": (1e-9, _MAX_STEP_S),
        "loader_workers": _COUNT,
        "grad_sqr": (0.0, _MAX_REAL),
        "grad_var": (0.0, _MAX_REAL),
    },
    StepSeconds: {"mean": (_MIN_STEP_S, _MAX_STEP_S), "m2": (0.0, _MAX_REAL)},
    PodFacts: {
        "rank": _COUNT,
        "since": _TIME,
        "until": _TIME,
        "peak_memory_bytes": _BYTES,
        "cpu_millis_max": _CPU,
    },
    NodeFacts: {"at": _TIME, "factor": (1e-6, 1e6)},
    RankFacts: {"rank": _COUNT},
    ModelShapeFacts: dict.fromkeys(ModelShapeFacts.__struct_fields__, _SHAPE),
    DeviceShortageFacts: {"micro_batch": (1, _MAX_INTEGER), "at": _TIME},
    PodRun: {
        "rank": _COUNT,
        "number": _COUNT,
        "started_ms": _TIME,
        "ended_ms": _TIME,
        "limit_memory_bytes": _BYTES,
        "peak_memory_bytes": _BYTES,
        "cpu_p50_millis": _CPU,
        "cpu_p95_millis": _CPU,
        "cpu_max_millis": _CPU,
    },
    NodeSpeed: {"day": (10_957, 47_482), "score": (0.001, 1_000.0), "jobs": _COUNT},
}
"""Other numbers are between 0 and 2^53, or finite and below 1e60."""

_LENGTHS: Final[Mapping[str, int]] = {
    "cluster": CLUSTER_LENGTH,
    "uid": UID_LENGTH,
    "namespace": NAMESPACE_LENGTH,
    "name": NAME_LENGTH,
    "stem": NAME_LENGTH,
    "owner": NAME_LENGTH,
    "queue": NAME_LENGTH,
    "node": NAME_LENGTH,
    "cause": NAME_LENGTH,
    "repository": REPOSITORY_LENGTH,
    "tag": DIGEST_LENGTH,
    "digest": DIGEST_LENGTH,
    "command_digest": DIGEST_LENGTH,
    "spec_digest": DIGEST_LENGTH,
    "gpu_model": DIGEST_LENGTH,
    "device_model": DIGEST_LENGTH,
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
        case RecordedJob():
            checked = _believe_parts(believed, dropped)
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
    times, missing = _believe(segment.step_seconds)
    dropped += missing
    if times is None or not segment.nodes <= segment.procs or segment.until < segment.since:
        dropped.append("SegmentFacts.until" if times else "SegmentFacts.step_seconds")
        return None
    quality = segment.quality if segment.quality in (GOOD, WARM_UP) else DISTURBED
    if segment.until > now_ms + FUTURE_MS:
        quality = DISTURBED
    restarts = segment.restarts
    if restarts is not None:
        lost = {
            phase: seconds
            for phase, seconds in restarts.seconds.items()
            if 0 <= seconds <= _MAX_STEP_S
        }
        restarts = RestartFacts(max(0, restarts.count), lost)
    changes = {
        "quality": quality,
        "memory_peak": _amounts(segment.memory_peak),
        "device_memory": _amounts(segment.device_memory),
        "restarts": restarts,
    }
    changed = any(getattr(segment, name) != value for name, value in changes.items())
    return replace(segment, **changes) if changed else segment


def _amounts(reported: Mapping[str, int]) -> dict[str, int]:
    possible = {name: x for name, x in reported.items() if 0 < x < _MAX_BYTES and len(name) < 128}
    return dict(sorted(possible.items())[:_MAX_MODELS])


def _believe_parts(job: RecordedJob, dropped: list[str]) -> RecordedJob:
    """Return the job with what is possible of its parts, and add the names of the others."""

    def possible(part: S) -> S | None:
        believed, missing = _believe(part)
        dropped.extend(missing)
        return believed

    def possible_sizes(sizes: tuple[S, ...], name: str) -> tuple[S, ...]:
        if len(sizes) > MAX_ROLES:
            dropped.append(name)
        believed = map(possible, sizes[:MAX_ROLES])
        return tuple(size for size in believed if size is not None)

    wishes = job.wishes
    if not _encodable(wishes):
        wishes = Wishes()
        dropped.append("RecordedJob.wishes")
    finished_ms = job.finished_ms
    if finished_ms is not None:
        finished_ms = max(finished_ms, job.submitted_ms)  # clocks of two machines
    return replace(
        job,
        roles=possible_sizes(job.roles, "RecordedJob.roles"),
        planned=possible_sizes(job.planned, "RecordedJob.planned"),
        model=None if job.model is None else possible(job.model),
        image=possible(job.image) or Image(),
        wishes=wishes,
        finished_ms=finished_ms,
    )


def possible_text(text: str, length: int) -> bool:
    """Whether every database stores and compares ``text`` as it is."""
    return len(text) <= length and text == text.strip() and not _CONTROL.search(text)


def _believe(record: S) -> tuple[S | None, list[str]]:
    kind = type(record)
    ranges = _RANGES.get(kind, {})

    dropped: list[str] = []
    unknown: dict[str, Any] = {}
    for field in _fields(kind):
        value = getattr(record, field.name)
        essential = field.required or (kind, field.name) in _ESSENTIAL
        possible = _possible(field.name, value, ranges.get(field.name))
        if possible and not (value == "" and essential):
            continue
        dropped.append(f"{kind.__name__}.{field.name}")
        if essential:
            return None, dropped
        unknown[field.name] = _unknown(field)
    return (replace(record, **unknown) if unknown else record), dropped


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _unknown(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _possible(name: str, value: object, limits: Range | None) -> bool:
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
        case msgspec.Struct() | tuple():
            return True  # checked by itself, or without a column of its own
        case _:
            return _encodable(value)


def _encodable(value: object) -> bool:
    try:
        return len(msgspec.json.encode(value)) <= MAX_WISHES_BYTES
    except (TypeError, ValueError, UnicodeError):
        return False
