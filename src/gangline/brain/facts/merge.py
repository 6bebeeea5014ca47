"""Two observations of one thing become one, the same in any order and however often they arrive.

``merge`` is commutative, associative and idempotent, so that a re-list changes nothing. Fields that
only grow are merged one by one; the others come from the record that counts more. The last
criterion is the encoded record: it has no meaning, but it does not depend on the order of arrival.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from gangline.api.jobs.training_facts import ModelShapeFacts, SegmentFacts
from gangline.brain.facts.records import NodeSpeed, Outcome, PodRun, Record, RecordedJob, RoleSize

_FINALITY: Final = {Outcome.RUNNING: 0, Outcome.DELETED: 1, Outcome.FAILED: 2, Outcome.SUCCEEDED: 3}
"""A job that ended and was deleted later has succeeded or failed."""

R = TypeVar("R", bound=Record)


def merge(one: R, other: R) -> R:
    return cast(R, _MERGES[type(one)](one, other))


def _merge_jobs(one: RecordedJob, other: RecordedJob) -> RecordedJob:
    counts = max(one, other, key=_job_weight)
    ended = counts.outcome is not Outcome.RUNNING
    return replace(
        counts,
        submitted_ms=min(one.submitted_ms, other.submitted_ms),
        started_ms=_known(min, one.started_ms, other.started_ms),
        restarts=max(one.restarts, other.restarts),
        # Only a record of the end can say that everything was watched; after a restart of the
        # Brain a later record of the same end cannot.
        complete=ended and (_watched(one) or _watched(other)),
        roles=_merge_roles(one.roles, other.roles),
        model=_merge_models(one.model, other.model),
    )


def _merge_pod_runs(one: PodRun, other: PodRun) -> PodRun:
    """Peaks and samples only grow."""
    counts = max(one, other, key=_pod_weight)
    return replace(
        counts,
        started_ms=min(one.started_ms, other.started_ms),
        oom=one.oom or other.oom,
        peak_memory_bytes=_known(max, one.peak_memory_bytes, other.peak_memory_bytes),
        cpu_max_millis=_known(max, one.cpu_max_millis, other.cpu_max_millis),
    )


_MERGES: Final[dict[type, Callable[[Any, Any], Record]]] = {
    RecordedJob: _merge_jobs,
    # The observation with more steps: segments are closed, so they only seldom differ.
    SegmentFacts: lambda *both: max(both, key=lambda one: (one.steps, one.until, _bytes(one))),
    PodRun: _merge_pod_runs,
    # The later computation of the day.
    NodeSpeed: lambda *both: max(both, key=lambda one: (one.observed_ms, one.jobs, _bytes(one))),
}


def _watched(job: RecordedJob) -> bool:
    return job.complete and job.outcome is not Outcome.RUNNING


def _job_weight(job: RecordedJob) -> tuple[int, int, int, bytes]:
    bare = replace(
        job, submitted_ms=0, started_ms=None, restarts=0, complete=False, roles=(), model=None
    )
    return (_FINALITY[job.outcome], job.observed_ms, job.finished_ms or 0, _bytes(bare))


def _pod_weight(pod: PodRun) -> tuple[bool, int, bytes]:
    bare = replace(pod, started_ms=0, oom=False, peak_memory_bytes=None, cpu_max_millis=None)
    return (pod.ended_ms is not None, pod.samples, _bytes(bare))


def _merge_roles(one: tuple[RoleSize, ...], other: tuple[RoleSize, ...]) -> tuple[RoleSize, ...]:
    merged: dict[tuple[str, int], RoleSize] = {}
    for size in (*one, *other):
        key = (size.role, size.since_ms)
        merged[key] = max(merged.get(key, size), size, key=_bytes)
    return tuple(merged[key] for key in sorted(merged))


def _merge_models(
    one: ModelShapeFacts | None, other: ModelShapeFacts | None
) -> ModelShapeFacts | None:
    """The model of which more is known."""

    def weight(model: ModelShapeFacts) -> tuple[int, bytes]:
        return sum(value is not None for value in msgspec.structs.astuple(model)), _bytes(model)

    models = [model for model in (one, other) if model is not None]
    return max(models, key=weight, default=None)


def _known(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    return one if other is None else choose(one, other)


def _bytes(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record, order="deterministic")
