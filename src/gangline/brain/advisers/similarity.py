"""Which runs of the history a job is compared with: levels from the same specification outwards.

=====  =========================================================================================
level  what is equal
=====  =========================================================================================
0      namespace, owner, kind and digest of the specification
1      the family: namespace, owner, kind, stem of the name, image repository, command
2      as level 1, with another owner or another command
3      namespace, image repository, kind, strategy, and a model size within a factor of 1.25
4      the nearest model: distance of the logarithms of parameters, sequence, micro-batch and
       world at most 0.7, on the same model of GPU, in any namespace
=====  =========================================================================================

The first level with enough complete successful runs is used, together with what the levels before
it hold. Other runs count as lower bounds only: they show that a job needs at least so much. The job
itself never counts. Pure selection: the store's queries return candidates, this decides.
"""

import math
from collections.abc import Iterable

from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Outcome, RecordedJob, Run

LEAST_RUNS = (1, 3, 3, 3, 3)
"""Complete successful runs that a level needs."""
LEVEL_WEIGHTS = (1.0, 0.8, 0.6, 0.4, 0.3)
WINDOW_MS = 30 * 86_400_000
HALF_LIFE_MS = 14 * 86_400_000
FARTHEST = 0.7
SAME_SIZE = 1.25
LOWERING_LEVEL = 1
"""Levels above this never lower what the user wrote."""


def select_similar(run: Run, candidates: Iterable[Run], now_ms: int) -> SimilarRuns:
    """Choose the runs that a job is compared with, the most similar and newest first.

    Without enough successful runs at any level, ``runs`` is empty and ``bounds`` holds what is
    similar.
    """
    ranked: list[tuple[int, int, Run]] = []
    for candidate in candidates:
        level = similarity_level(run, candidate)
        at_ms = last_ms(candidate.job)
        if level is not None and now_ms - at_ms <= WINDOW_MS:
            ranked.append((level, -at_ms, candidate))
    ranked.sort(key=lambda entry: (entry[0], entry[1], entry[2].job.uid))
    for level, least in enumerate(LEAST_RUNS):
        chosen = [other for at, _, other in ranked if at <= level]
        runs = tuple(other for other in chosen if is_success(other.job))
        if len(runs) >= least:
            bounds = tuple(other for other in chosen if not is_success(other.job))
            return SimilarRuns(level=level, runs=runs, bounds=bounds)
    bounds = tuple(other for _, _, other in ranked)
    return SimilarRuns(level=ranked[0][0] if ranked else 0, bounds=bounds)


def similarity_level(run: Run, other: Run) -> int | None:
    """Return the lowest level at which two runs are similar, None if at none."""
    job, past = run.job, other.job
    if job.cluster != past.cluster or job.uid == past.uid:
        return None
    for level, (mine, theirs) in enumerate(zip(level_keys(job), level_keys(past), strict=True)):
        is_equal = mine is not None and mine == theirs
        if is_equal and (level < 3 or _model_ratio(job, past) <= SAME_SIZE):
            return level
    return _level_by_model(run, other)


def level_keys(job: RecordedJob) -> tuple[tuple[str, ...] | None, ...]:
    """Return what similar jobs have equal at the levels 0 to 3; None: there are none."""
    place = (job.cluster, job.namespace, job.kind)
    family = (*place, job.stem, job.image.repository)
    return (
        (*place, job.owner, job.spec_digest) if job.spec_digest else None,
        (*family, job.owner, job.command_digest) if job.command_digest else None,
        family,
        (*place, job.image.repository, job.strategy),
    )


def is_success(job: RecordedJob) -> bool:
    """Whether a run shows what the job needs: it succeeded, and was watched from start to end."""
    return job.outcome is Outcome.SUCCEEDED and job.complete and job.finished_ms is not None


def last_ms(job: RecordedJob) -> int:
    """When the job finished; if it has not, when it started or was submitted."""
    return job.finished_ms or job.started_ms or job.submitted_ms


def is_larger(run: Run, others: Iterable[Run]) -> bool:
    """Whether a reported size of a job is more than 1.25 times that of all others.

    Sizes that either side does not report do not count.
    """
    mine, theirs = _shape(run), [_shape(other) for other in others]
    for name in ("parameters", "sequence"):
        largest = max((shape[name] for shape in theirs if name in shape), default=math.inf)
        if mine.get(name, 0.0) > SAME_SIZE * largest:
            return True
    return False


def _level_by_model(run: Run, other: Run) -> int | None:
    gpu, past_gpu = _gpu_model(run), _gpu_model(other)
    mine, theirs = _shape(run), _shape(other)
    if not gpu or gpu != past_gpu or "parameters" not in mine or "parameters" not in theirs:
        return None
    shared = mine.keys() & theirs.keys()
    distance = math.sqrt(sum(math.log(mine[name] / theirs[name]) ** 2 for name in shared))
    return 4 if distance <= FARTHEST else None


def _model_ratio(job: RecordedJob, past: RecordedJob) -> float:
    mine, theirs = (one.model.params if one.model else None for one in (job, past))
    return max(mine / theirs, theirs / mine) if mine and theirs else math.inf


def _gpu_model(run: Run) -> str:
    models = [role.gpu_model for role in run.job.roles]
    models += [segment.device_model for segment in run.segments]
    return next(filter(None, reversed(models)), "")


def _shape(run: Run) -> dict[str, float]:
    """What is known of parameters, sequence, micro-batch and world, each above 0."""
    amounts: dict[str, int | None] = {}
    if model := run.job.model:
        amounts |= {"parameters": model.params, "sequence": model.sequence}
    for last in run.segments[-1:]:
        amounts |= {"micro_batch": last.micro_batch, "world": last.procs}
    return {name: float(value) for name, value in amounts.items() if value}
