"""Memory: what runs show about it, advice on a role, warnings where the user's number is too low.

A rank that was killed at the limit L is censored: it needed more than L, and how much is not known.
It is one sample for each (job, rank, L), however often it was killed there: 1.2 L, or L + 256 MiB
if that is more. The sample depends on a limit at which a process was really killed, never on an
earlier sample. So repeated kills below a cap do not feed each other (issue 9521 of the Vertical Pod
Autoscaler). Once two later runs survive with more memory, their real peaks take its place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gangline.brain.advisers.advice import (
    Advice,
    Arguments,
    Confidence,
    Reason,
    Unit,
    What,
    because,
)
from gangline.brain.advisers.similarity import (
    HALF_LIFE_MS,
    LEVEL_WEIGHTS,
    LOWERING_LEVEL,
    WINDOW_MS,
    is_larger,
    is_success,
    last_ms,
    similarity_level,
)
from gangline.brain.advisers.view import AdviserView
from gangline.brain.facts.records import PodRun, RecordedJob, RoleSize, Run
from gangline.brain.models.histogram import MEMORY, Histogram

MIB = 1 << 20
KILLED_FACTOR = 1.2
KILLED_LEAST = 256 * MIB
_SURVIVORS = 2


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest memory of one rank in one run."""

    job: RecordedJob
    rank: int
    memory_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A rank that ran out of memory at a limit, once or repeatedly."""

    job: RecordedJob
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


def role_size(job: RecordedJob, role: str) -> RoleSize | None:
    """Return the latest size of a role."""
    sizes = [size for size in job.roles if size.role == role]
    return max(sizes, key=lambda size: size.since_ms) if sizes else None


def running_size(job: RecordedJob, role: str, rank: int | None = None) -> RoleSize | None:
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
        size = replace(
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


def _killed_at(pod: PodRun, job: RecordedJob) -> int | None:
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


UNCHANGED = 0.05
"""Smaller changes are no advice."""
_HIGH_RUNS = 5
_WIDER_PER_LEVEL = 1.3


def obstacle_to_lower(view: AdviserView) -> str:
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


MARGIN = 1.15
LEAST_BYTES = 256 * MIB
_LAST_RUNS = 3
_WEIGHT = 10
"""Integer weight of a sample of level 0; others have the share that their level allows."""


@dataclass(frozen=True, slots=True)
class MemorySize:
    """A number, and what it rests on."""

    value_bytes: int
    low_bytes: int
    high_bytes: int
    basis_bytes: int
    """What the margin is added to; 0 if there is no peak."""
    highest: Peak | None
    """The highest peak."""
    from_kill: Kill | None
    """Set if the number is an estimate from a kill."""
    runs: int


def size_memory(
    samples: Sequence[Peak], unknown: Sequence[Kill], weights: dict[str, float] | None = None
) -> MemorySize | None:
    """Derive the memory from the peaks of the ranks and the kills with unknown need.

    Args:
        weights: how much a run counts beside its age, by its UID; 1 where it is not given.

    Returns:
        None without any peak or kill: a number is never invented.
    """
    killed = max(unknown, key=lambda kill: (kill.needed_bytes, kill.at_ms), default=None)
    if not samples:
        if killed is None:
            return None
        value = _rounded(killed.needed_bytes)
        return MemorySize(value, killed.limit_bytes, 2 * value, 0, None, killed, 1)
    histogram = Histogram(MEMORY)
    for peak in samples:
        share = (weights or {}).get(peak.job.uid, 1.0)
        histogram.add(peak.memory_bytes, peak.at_ms, max(round(_WEIGHT * share), 1))
    usual = histogram.percentile(980) or 0
    median = histogram.percentile(500) or 0
    recent = max(last_run.memory_bytes for last_run in _last_runs(samples))
    basis = max(usual, recent)
    real = max(basis * MARGIN, LEAST_BYTES)
    value = _rounded(max(real, killed.needed_bytes if killed else 0))
    runs = len({peak.job.uid for peak in samples})
    highest = max(samples, key=lambda peak: (peak.memory_bytes, peak.at_ms))
    # As the Vertical Pod Autoscaler widens its upper bound by 1 + 1/days: here by runs.
    high = _rounded(max(highest.memory_bytes * MARGIN, value) * (1 + 1 / max(runs, 1)))
    return MemorySize(
        value_bytes=value,
        low_bytes=min(_rounded(max(median * MARGIN, LEAST_BYTES)), value),
        high_bytes=high,
        basis_bytes=basis,
        highest=highest,
        from_kill=killed if killed and killed.needed_bytes > real else None,
        runs=runs,
    )


def _last_runs(samples: Sequence[Peak]) -> list[Peak]:
    """The peaks of the three runs that ended last, if they still count half as much as new ones."""
    ended: dict[str, int] = {}
    for peak in samples:
        ended[peak.job.uid] = max(last_ms(peak.job), peak.at_ms)
    newest = sorted(ended, key=lambda uid: (-ended[uid], uid))[:_LAST_RUNS]
    limit = ended[newest[0]] - HALF_LIFE_MS
    return [peak for peak in samples if peak.job.uid in newest and ended[peak.job.uid] >= limit]


def _rounded(amount: float) -> int:
    """Up to the next MiB, so that manifests stay readable."""
    return -(-int(-(-amount // 1)) // MIB) * MIB


_FEWEST_KILLED_RUNS = 3
_MANY_KILLS = 10
_DAY_MS = 86_400_000


class _Evidence(msgspec.Struct, frozen=True):
    """What is known of the memory of one role."""

    view: AdviserView
    size: RoleSize
    peaks: Sequence[Peak]
    killed: Sequence[Kill]
    unknown: Sequence[Kill]
    least: Sequence[Peak]
    """Peaks of runs that count as lower bounds only, this job's own among them."""
    may_lower: str
    """Empty if a smaller number may be advised; else why not: ``similarity`` or ``size``."""

    @property
    def level(self) -> int:
        return self.view.similar.level if self.view.similar else 0

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.view.similar.runs if self.view.similar else ()

    @property
    def role(self) -> str:
        return self.size.role

    def of(self, rank: int, *, only: bool) -> "_Evidence":
        """The evidence of one rank alone, or of all others."""
        own = running_size(self.view.run.job, self.role, rank) if only else None
        lists = {
            name: [one for one in getattr(self, name) if (one.rank == rank) == only]
            for name in ("peaks", "killed", "unknown", "least")
        }
        return replace(self, size=own or self.size, **lists)


def advise_memory(view: AdviserView, size: RoleSize) -> list[Advice]:
    evidence = _gather(view, size)
    special = outlier_rank(evidence.peaks)
    if special is None:
        return _size_role(evidence, None)
    # Both or none: the number of the others must not reach the rank that needs more.
    others = _size_role(evidence.of(special, only=False), None, unchanged=0.0)
    return others + _size_role(evidence.of(special, only=True), special, unchanged=0.0)


def _gather(view: AdviserView, size: RoleSize) -> _Evidence:
    role = size.role
    runs = view.similar.runs if view.similar else ()
    bounds = (*(view.similar.bounds if view.similar else ()), view.run)
    since_ms = view.now_ms - WINDOW_MS
    killed = [k for k in kills((*runs, *bounds), role, view.now_ms) if k.at_ms >= since_ms]
    unknown = open_kills(killed, runs, role)
    real = [peak for peak in peaks(runs, role, view.now_ms) if peak.at_ms >= since_ms]
    return _Evidence(
        view,
        size,
        with_known_limits(real, killed, unknown) if real else [],
        killed,
        unknown,
        peaks(bounds, role, view.now_ms),
        obstacle_to_lower(view),
    )


def _size_role(
    evidence: _Evidence, rank: int | None, *, unchanged: float = UNCHANGED
) -> list[Advice]:
    weights = {}
    for run in evidence.runs:
        level = similarity_level(evidence.view.run, run)
        weights[run.job.uid] = LEVEL_WEIGHTS[evidence.level if level is None else level]
    sized = size_memory(evidence.peaks, evidence.unknown, weights)
    least = max(evidence.least, key=lambda peak: peak.memory_bytes, default=None)
    value = sized.value_bytes if sized else 0
    bounded = None
    if least and least.memory_bytes > (sized.basis_bytes if sized else 0):
        raised = -(-round(least.memory_bytes * MARGIN) // MIB) * MIB
        if raised > value:
            value, bounded = raised, least
    was = evidence.size.memory_bytes or None
    if not value or (sized is None and (was is None or value <= was)):
        return []  # a lower bound alone is no size
    largest = evidence.view.cluster.largest_memory_bytes or None
    if largest is not None and value > largest:
        stuck = [kill for kill in evidence.unknown if largest < 1.05 * kill.limit_bytes]
        if stuck:
            return [_no_larger_node(evidence, rank, stuck, largest)]
        value = largest
    warnings = _warnings(evidence, rank, value)
    if was is not None and abs(value - was) < unchanged * was:
        return warnings
    lowered = was is not None and value < was
    blocked = evidence.may_lower if lowered else ""
    if bounded is not None:
        reason = _lower_bound(evidence, bounded)
    elif blocked:
        reason = _not_lowered(evidence, value)
    else:
        assert sized is not None
        reason = _size_reason(evidence, sized, value)
    wider = range_factor(evidence.level)
    low = (sized.low_bytes if sized else value) / wider
    # Runs that did not end say nothing about how much more they would have needed.
    high = max(sized.high_bytes if sized else 2 * value, value) * wider
    advice = Advice(
        what=What.MEMORY,
        role=evidence.role,
        rank=rank,
        unit=Unit.BYTES,
        was=was,
        value=was if blocked else value,
        low=min(low, value),
        high=high if largest is None else max(min(high, largest), value),
        reason=reason,
        evidence=_uids(evidence),
        confidence=confidence_of(evidence.level, len(evidence.runs)),
    )
    return [advice, *warnings]


def _size_reason(evidence: _Evidence, sized: MemorySize, value: int) -> Reason:
    if sized.from_kill is not None or sized.highest is None:
        kill = sized.from_kill or evidence.unknown[0]
        same = [other for other in evidence.killed if other.limit_bytes == kill.limit_bytes]
        return because(
            "OutOfMemory",
            limit_bytes=kill.limit_bytes,
            kills=sum(other.times for other in same),
            ranks=len({other.rank for other in same}),
            runs=len({other.job.uid for other in same}),
            rank=kill.rank,
        )
    replicas = evidence.size.replicas
    was = evidence.size.memory_bytes or None
    ended = [last_ms(run.job) for run in evidence.runs]
    arguments: Arguments = {
        "runs": sized.runs,
        "level": evidence.level,
        "stem": evidence.view.run.job.stem,
        "first_ms": min(ended),
        "last_ms": max(ended),
        "margin_percent": round(100 * (MARGIN - 1)),
        "ooms": len({kill.job.uid for kill in evidence.killed}),
        "replicas": replicas,
        "saved_bytes": (was - value) * replicas if was is not None else 0,
    }
    if sized.basis_bytes < sized.highest.memory_bytes:
        arguments["usual_bytes"] = sized.basis_bytes
        arguments["highest_bytes"] = sized.highest.memory_bytes
        return because("UsualPeak", **arguments)
    arguments["peak_bytes"] = sized.highest.memory_bytes
    arguments["peak_rank"] = sized.highest.rank
    arguments["peak_run"] = sized.highest.job.name
    return because("HighestPeak", **arguments)


def _lower_bound(evidence: _Evidence, least: Peak) -> Reason:
    return because(
        "LowerBound",
        runs=len({peak.job.uid for peak in evidence.least}),
        peak_bytes=least.memory_bytes,
        margin_percent=round(100 * (MARGIN - 1)),
    )


def _not_lowered(evidence: _Evidence, value: int) -> Reason:
    return because(
        "NotLowered",
        runs=len(evidence.runs),
        level=evidence.level,
        estimate_bytes=value,
        because=evidence.may_lower,
    )


def _warnings(evidence: _Evidence, rank: int | None, value: int) -> list[Advice]:
    """At most one: the limit kills again and again, or the user asks for less than is needed."""
    was = evidence.size.memory_bytes or None
    by_limit: dict[int, list[Kill]] = {}
    for kill in evidence.unknown:
        by_limit.setdefault(kill.limit_bytes, []).append(kill)
    for limit, killed in sorted(by_limit.items(), reverse=True):
        runs = {kill.job.uid for kill in killed}
        times = sum(kill.times for kill in killed)
        span = max(kill.at_ms for kill in killed) - min(kill.first_ms for kill in killed)
        if len(runs) >= _FEWEST_KILLED_RUNS or (times >= _MANY_KILLS and span >= _DAY_MS):
            arguments: Arguments = {
                "limit_bytes": limit,
                "kills": times,
                "runs": len(runs),
                "days": max(-(-span // _DAY_MS), 1),
                "need_bytes": value,
            }
            return [_warning(evidence, rank, "LimitTooLow", arguments, was, value)]
    if was is None or value <= was * (1 + UNCHANGED) or not (evidence.runs or evidence.killed):
        return []
    arguments = {
        "request_bytes": was,
        "need_bytes": value,
        "runs": len(evidence.runs),
        "ooms": len({kill.job.uid for kill in evidence.killed}),
    }
    return [_warning(evidence, rank, "RequestBelowNeed", arguments, was, value)]


def _no_larger_node(
    evidence: _Evidence, rank: int | None, stuck: Sequence[Kill], largest: int
) -> Advice:
    arguments: Arguments = {
        "limit_bytes": max(kill.limit_bytes for kill in stuck),
        "node_bytes": largest,
        "kills": sum(kill.times for kill in stuck),
    }
    return _warning(evidence, rank, "LargestNodeTooSmall", arguments, evidence.size.memory_bytes)


def _warning(
    evidence: _Evidence,
    rank: int | None,
    code: str,
    arguments: Arguments,
    was: float | None,
    value: float | None = None,
) -> Advice:
    return Advice(
        what=What.WARNING,
        role=evidence.role,
        rank=rank,
        target=code,
        unit=Unit.BYTES,
        was=was,
        value=value,
        reason=because(code, **arguments),
        evidence=_uids(evidence),
        confidence=confidence_of(evidence.level, len(evidence.runs)),
    )


def _uids(evidence: _Evidence) -> tuple[str, ...]:
    newest_first = sorted(evidence.runs, key=lambda run: (-last_ms(run.job), run.job.uid))
    uids = [run.job.uid for run in newest_first]
    uids += [peak.job.uid for peak in evidence.peaks]
    uids += [kill.job.uid for kill in evidence.killed]
    return tuple(dict.fromkeys(uids))
