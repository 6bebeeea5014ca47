"""What runs show about memory and CPU, and the rules that hold for advice on both.

A rank that was killed at the limit L is censored: it needed more than L, and how much is not known.
It is one sample for each (job, rank, L), however often it was killed there: 1.2 L, or L + 256 MiB
if that is more. The sample depends on a limit at which a process was really killed, never on an
earlier sample. So repeated kills below a cap do not feed each other (issue 9521 of the Vertical Pod
Autoscaler). Once two later runs survive with more memory, their real peaks take its place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gangline.brain.advisers.advice import Confidence
from gangline.brain.advisers.similarity import LOWERING_LEVEL, is_larger, is_success, last_ms
from gangline.brain.advisers.view import View
from gangline.brain.facts.records import Job, PodRun, RoleSize, Run

MIB = 1 << 20
KILLED_FACTOR = 1.2
KILLED_LEAST = 256 * MIB
_SURVIVORS = 2


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest memory of one rank in one run."""

    job: Job
    rank: int
    memory_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A rank that ran out of memory at a limit, once or repeatedly."""

    job: Job
    rank: int
    limit_bytes: int
    times: int
    first_ms: int
    at_ms: int
    """The last time."""

    @property
    def needed_bytes(self) -> int:
        """What is given instead: an estimate, since the real need is not known."""
        return max(round(self.limit_bytes * KILLED_FACTOR), self.limit_bytes + KILLED_LEAST)


def peaks(runs: Iterable[Run], role: str, now_ms: int) -> list[Peak]:
    """Return one peak for each rank and run; ranks that were not measured have none."""
    highest: dict[tuple[str, int], Peak] = {}
    for run in runs:
        for pod in run.pods:
            if pod.role != role or pod.oom or not pod.peak_memory_bytes:
                continue
            key = (run.job.uid, pod.rank)
            earlier = highest.get(key)
            if earlier is None or pod.peak_memory_bytes > earlier.memory_bytes:
                at_ms = min(pod.ended_ms or now_ms, now_ms)
                highest[key] = Peak(run.job, pod.rank, pod.peak_memory_bytes, at_ms)
    return list(highest.values())


def kills(runs: Iterable[Run], role: str, now_ms: int) -> list[Kill]:
    """Return the limits at which ranks were killed."""
    by_limit: dict[tuple[str, int, int], Kill] = {}
    for run in runs:
        for pod in run.pods:
            limit = _killed_at(pod, run.job) if pod.role == role and pod.oom else None
            if limit is None:
                continue
            key = (run.job.uid, pod.rank, limit)
            earlier = by_limit.get(key)
            at_ms = min(pod.ended_ms or now_ms, now_ms)
            by_limit[key] = Kill(
                run.job,
                pod.rank,
                limit,
                earlier.times + 1 if earlier else 1,
                min(at_ms, earlier.first_ms) if earlier else at_ms,
                max(at_ms, earlier.at_ms) if earlier else at_ms,
            )
    return list(by_limit.values())


def open_kills(killed: Sequence[Kill], runs: Sequence[Run], role: str) -> list[Kill]:
    """Return the kills whose real need is still unknown: fewer than two runs survived since."""
    return [kill for kill in killed if sum(_survived(run, role, kill) for run in runs) < _SURVIVORS]


def with_known_limits(
    real_peaks: Sequence[Peak], killed: Sequence[Kill], unknown: Sequence[Kill]
) -> list[Peak]:
    """Add the limits of kills that are no longer open: such a run needed more than its limit.

    Without them, a run that needs more than most would be forgotten after two usual ones. They fade
    as all samples do. Where the same rank survived in the same run, its real peak says more.
    """
    real = {(peak.job.uid, peak.rank): peak.memory_bytes for peak in real_peaks}
    at_least = [
        Peak(kill.job, kill.rank, kill.limit_bytes, kill.at_ms)
        for kill in killed
        if kill not in unknown and real.get((kill.job.uid, kill.rank), 0) < kill.limit_bytes
    ]
    return [*real_peaks, *at_least]


def role_size(job: Job, role: str) -> RoleSize | None:
    """Return the latest size of a role."""
    sizes = [size for size in job.roles if size.role == role]
    return max(sizes, key=lambda size: size.since_ms) if sizes else None


def running_size(job: Job, role: str, rank: int | None = None) -> RoleSize | None:
    """Return what new pods of a role request: the specification, and what plans have changed.

    With ``rank``, what the next pod of this rank requests.
    """
    size = role_size(job, role)
    if size is None:
        return None
    own = [
        planned for planned in job.planned if planned.role == role and planned.rank in (None, rank)
    ]
    for planned in sorted(own, key=lambda planned: planned.rank is not None):
        size = msgspec.structs.replace(
            size,
            cpu_millis=size.cpu_millis if planned.cpu_millis is None else planned.cpu_millis,
            memory_bytes=size.memory_bytes
            if planned.memory_bytes is None
            else planned.memory_bytes,
        )
    return size


def outlier_rank(samples: Sequence[Peak]) -> int | None:
    """Return the rank that needs its own size: above all others by 30 % in three runs or more.

    It must be so in at least half of the runs that have several ranks.
    """
    runs: dict[str, list[Peak]] = {}
    for peak in samples:
        runs.setdefault(peak.job.uid, []).append(peak)
    several = [group for group in runs.values() if len(group) > 1]
    above: dict[int, int] = {}
    for group in several:
        first, second = sorted(group, key=lambda peak: -peak.memory_bytes)[:2]
        if first.memory_bytes > 1.3 * second.memory_bytes:
            above[first.rank] = above.get(first.rank, 0) + 1
    if not above:
        return None
    rank = max(above, key=lambda rank: (above[rank], -rank))
    return rank if above[rank] >= max(3, len(several) / 2) else None


def _killed_at(pod: PodRun, job: Job) -> int | None:
    if pod.limit_memory_bytes:
        return pod.limit_memory_bytes
    size = role_size(job, pod.role)
    return size.memory_bytes if size else None


def _survived(run: Run, role: str, kill: Kill) -> bool:
    """Whether a later run, or the same one after the kill, succeeded with a larger limit."""
    if not is_success(run.job) or last_ms(run.job) < kill.at_ms:
        return False
    return any(
        pod.role == role
        and not pod.oom
        and pod.peak_memory_bytes is not None
        and (_killed_at(pod, run.job) or 0) > kill.limit_bytes
        for pod in run.pods
    )


Arguments = dict[str, str | int | float | list[str]]

UNCHANGED = 0.05
"""Smaller changes are no advice."""
_HIGH_RUNS = 5
_WIDER_PER_LEVEL = 1.3


def obstacle_to_lower(view: View) -> str:
    """Why nothing may be lowered; empty if it may."""
    if view.similar is None or not view.similar.runs or view.similar.level > LOWERING_LEVEL:
        return "similarity"
    return "size" if is_larger(view.run, view.similar.runs) else ""


def range_factor(level: int) -> float:
    """How much wider a range is at a level of similarity."""
    return float(_WIDER_PER_LEVEL ** max(level - 1, 0))


def confidence_of(level: int, runs: int) -> Confidence:
    if level <= LOWERING_LEVEL and runs >= _HIGH_RUNS:
        return Confidence.HIGH
    return Confidence.MEDIUM if level <= 2 and runs else Confidence.LOW
