"""Memory: what runs show about it, advice on a role, warnings where the user's number is too low.

A rank that was killed at the limit L is censored: it needed more than L, and how much is not known.
It is one sample for each (job, rank, L), however often it was killed there: 1.2 L, or L + 256 MiB
if that is more. The sample depends on a limit at which a process was really killed, never on an
earlier sample. So repeated kills below a cap do not feed each other (issue 9521 of the Vertical Pod
Autoscaler). Once two later runs survive with more memory, their real peaks take its place.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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
from gangline.brain.advisers.view import AdviserView, SimilarRuns
from gangline.brain.facts.records import PodRun, RecordedJob, RoleSize, Run
from gangline.brain.models.histogram import MEMORY, Histogram

MIB = 1 << 20
KILLED_FACTOR = 1.2
KILLED_LEAST = 256 * MIB
_SURVIVORS = 2


class Peak(NamedTuple):
    """The highest memory of one rank in one run."""

    job: RecordedJob
    rank: int
    memory_bytes: int
    at_ms: int


class Kill(NamedTuple):
    """A rank that ran out of memory at a limit, once or repeatedly."""

    job: RecordedJob
    rank: int
    limit_bytes: int
    times_ms: tuple[int, ...]
    """Oldest first."""

    @property
    def at_ms(self) -> int:
        """The last time."""
        return self.times_ms[-1]

    @property
    def needed_bytes(self) -> int:
        """What is given instead: an estimate, since the real need is not known."""
        return max(round(self.limit_bytes * KILLED_FACTOR), self.limit_bytes + KILLED_LEAST)


def peaks(runs: Iterable[Run], role: str, now_ms: int) -> list[Peak]:
    """Return one peak for each rank and run; ranks that were not measured have none."""
    highest: dict[tuple[str, int], Peak] = {}
    for run in runs:
        for pod in run.pods:
            if pod.role == role and not pod.oom and pod.peak_memory_bytes:
                peak = Peak(run.job, pod.rank, pod.peak_memory_bytes, _ended_ms(pod, now_ms))
                earlier = highest.get((run.job.uid, pod.rank), peak)
                highest[run.job.uid, pod.rank] = max(earlier, peak, key=_amount)
    return list(highest.values())


def kills(runs: Iterable[Run], role: str, now_ms: int) -> list[Kill]:
    """Return the limits at which ranks were killed."""
    by_limit: dict[tuple[str, int, int], Kill] = {}
    for run in runs:
        for pod in run.pods:
            limit = _killed_at(pod, run.job) if pod.role == role and pod.oom else None
            if limit is not None:
                key = (run.job.uid, pod.rank, limit)
                times = by_limit[key].times_ms if key in by_limit else ()
                times = tuple(sorted((*times, _ended_ms(pod, now_ms))))
                by_limit[key] = Kill(run.job, pod.rank, limit, times)
    return list(by_limit.values())


def _ended_ms(pod: PodRun, now_ms: int) -> int:
    return min(pod.ended_ms or now_ms, now_ms)


def _amount(peak: Peak) -> int:
    return peak.memory_bytes


def role_size(job: RecordedJob, role: str) -> RoleSize | None:
    """Return the latest size of a role."""
    sizes = (size for size in job.roles if size.role == role)
    return max(sizes, key=lambda size: size.since_ms, default=None)


def running_size(job: RecordedJob, role: str, rank: int | None = None) -> RoleSize | None:
    """Return what new pods of a role request: the specification, and what plans have changed.

    With ``rank``, what the next pod of this rank requests.
    """
    size = role_size(job, role)
    if size is None:
        return None
    for planned in sorted(job.planned, key=lambda planned: planned.rank is not None):
        if planned.role == role and planned.rank in (None, rank):
            amounts = {"cpu_millis": planned.cpu_millis, "memory_bytes": planned.memory_bytes}
            known = {name: amount for name, amount in amounts.items() if amount is not None}
            size = replace(size, **known)
    return size


def _outlier_rank(samples: Sequence[Peak]) -> int | None:
    """The rank that needs its own size: above all others by 30 % in three runs or more.

    It must be so in at least half of the runs that have several ranks.
    """
    runs: dict[str, list[Peak]] = {}
    for peak in samples:
        runs.setdefault(peak.job.uid, []).append(peak)
    several = [sorted(run, key=_amount) for run in runs.values() if len(run) > 1]
    above = Counter(
        run[-1].rank for run in several if run[-1].memory_bytes > 1.3 * run[-2].memory_bytes
    )
    rank = max(above, key=lambda rank: (above[rank], -rank), default=None)
    return rank if rank is not None and above[rank] >= max(3, len(several) / 2) else None


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
    if not view.similar.runs or view.similar.level > LOWERING_LEVEL:
        return "similarity"
    return "size" if is_larger(view.run, view.similar.runs) else ""


def range_factor(level: int) -> float:
    """How much wider a range is at a level of similarity."""
    return float(_WIDER_PER_LEVEL ** max(level - 1, 0))


def confidence_of(similar: SimilarRuns) -> Confidence:
    if similar.level <= LOWERING_LEVEL and len(similar.runs) >= _HIGH_RUNS:
        return Confidence.HIGH
    return Confidence.MEDIUM if similar.level <= 2 and similar.runs else Confidence.LOW


MARGIN = 1.15
LEAST_BYTES = 256 * MIB
_LAST_RUNS = 3
_WEIGHT = 10
"""Integer weight of a sample of level 0; others have the share that their level allows."""


class _MemorySize(NamedTuple):
    """A number, and what it rests on."""

    value_bytes: int
    low_bytes: int
    high_bytes: int
    basis_bytes: int
    """What the margin is added to; 0 if there is no peak."""
    kill: Kill | None
    """Set if the number is an estimate from a kill."""


def _last_runs(samples: Sequence[Peak]) -> list[Peak]:
    """The peaks of the three runs that ended last, if they still count half as much as new ones."""
    ended: dict[str, int] = {}
    for peak in samples:
        ended[peak.job.uid] = max(last_ms(peak.job), peak.at_ms)
    newest = sorted(ended, key=lambda uid: (-ended[uid], uid))[:_LAST_RUNS]
    recent = {uid for uid in newest if ended[uid] >= ended[newest[0]] - HALF_LIFE_MS}
    return [peak for peak in samples if peak.job.uid in recent]


def round_up(amount: float, step: int) -> int:
    """Return the next multiple of a step, so that manifests stay readable."""
    return -(-math.ceil(amount) // step) * step


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
    """Kills whose real need is still unknown: fewer than two runs survived since."""
    least: Sequence[Peak]
    """Peaks of runs that count as lower bounds only, this job's own among them."""
    rank: int | None = None
    """The only rank that is meant; None: the role."""

    @property
    def was(self) -> int | None:
        return self.size.memory_bytes or None

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.view.similar.runs

    def of(self, rank: int, *, only: bool) -> "_Evidence":
        """The evidence of one rank alone, or of all others."""
        own = running_size(self.view.run.job, self.size.role, rank) if only else None
        lists = {
            name: [one for one in getattr(self, name) if (one.rank == rank) == only]
            for name in ("peaks", "killed", "unknown", "least")
        }
        return replace(self, size=own or self.size, rank=rank if only else None, **lists)

    def advice(self, what: What, reason: Reason, **values: Any) -> Advice:
        newest_first = sorted(self.runs, key=lambda run: (-last_ms(run.job), run.job.uid))
        jobs = [run.job for run in newest_first]
        jobs += [peak.job for peak in self.peaks] + [kill.job for kill in self.killed]
        return Advice(
            what=what,
            role=self.size.role,
            rank=self.rank,
            unit=Unit.BYTES,
            was=self.was,
            reason=reason,
            evidence=tuple(dict.fromkeys(job.uid for job in jobs)),
            confidence=confidence_of(self.view.similar),
            **values,
        )


def advise_memory(view: AdviserView, size: RoleSize) -> list[Advice]:
    evidence = _gather(view, size)
    special = _outlier_rank(evidence.peaks)
    if special is None:
        return _size_role(evidence)
    # Both or none: the number of the others must not reach the rank that needs more.
    others = _size_role(evidence.of(special, only=False), unchanged=0.0)
    return others + _size_role(evidence.of(special, only=True), unchanged=0.0)


def _gather(view: AdviserView, size: RoleSize) -> _Evidence:
    role, runs = size.role, view.similar.runs
    bounds = (*view.similar.bounds, view.run)
    since_ms = view.now_ms - WINDOW_MS
    killed = [k for k in kills((*runs, *bounds), role, view.now_ms) if k.at_ms >= since_ms]
    unknown = [k for k in killed if sum(_survived(run, role, k) for run in runs) < _SURVIVORS]
    real = [peak for peak in peaks(runs, role, view.now_ms) if peak.at_ms >= since_ms]
    # A run that was killed needed more than its limit. Without these, a run that needs more than
    # most would be forgotten after two usual ones. They fade as all samples do. Where the same rank
    # survived in the same run, its real peak says more.
    amounts = {(peak.job.uid, peak.rank): peak.memory_bytes for peak in real}
    known = [
        Peak(kill.job, kill.rank, kill.limit_bytes, kill.at_ms)
        for kill in killed
        if kill not in unknown and amounts.get((kill.job.uid, kill.rank), 0) < kill.limit_bytes
    ]
    least = peaks(bounds, role, view.now_ms)
    return _Evidence(view, size, [*real, *known] if real else [], killed, unknown, least)


def _memory_size(evidence: _Evidence) -> _MemorySize | None:
    """Derive the memory from the peaks of the ranks and the kills with unknown need.

    None without any peak or kill: a number is never invented.
    """
    samples = evidence.peaks
    killed = max(evidence.unknown, key=lambda kill: (kill.needed_bytes, kill.at_ms), default=None)
    if not samples:
        if killed is None:
            return None
        value = round_up(killed.needed_bytes, MIB)
        return _MemorySize(value, killed.limit_bytes, 2 * value, 0, killed)
    weights = {}
    for run in evidence.runs:
        level = similarity_level(evidence.view.run, run)
        level = evidence.view.similar.level if level is None else level
        weights[run.job.uid] = round(_WEIGHT * LEVEL_WEIGHTS[level])
    histogram = Histogram(MEMORY)
    for peak in samples:
        histogram.add(peak.memory_bytes, peak.at_ms, weights.get(peak.job.uid, _WEIGHT))
    basis = max(histogram.percentile(980) or 0, *map(_amount, _last_runs(samples)))
    real = max(basis * MARGIN, LEAST_BYTES)
    value = round_up(max(real, killed.needed_bytes if killed else 0), MIB)
    runs = len({peak.job.uid for peak in samples})
    median = histogram.percentile(500) or 0
    return _MemorySize(
        value_bytes=value,
        low_bytes=min(round_up(max(median * MARGIN, LEAST_BYTES), MIB), value),
        # As the Vertical Pod Autoscaler widens its upper bound by 1 + 1/days: here by runs.
        high_bytes=round_up(max(histogram.peak * MARGIN, value) * (1 + 1 / runs), MIB),
        basis_bytes=basis,
        kill=killed if killed and killed.needed_bytes > real else None,
    )


def _size_role(evidence: _Evidence, *, unchanged: float = UNCHANGED) -> list[Advice]:
    sized, was = _memory_size(evidence), evidence.was
    least = max(evidence.least, key=_amount, default=None)
    value, basis = (sized.value_bytes, sized.basis_bytes) if sized else (0, 0)
    raised = round_up(round(least.memory_bytes * MARGIN), MIB) if least else 0
    bounded = least if least and least.memory_bytes > basis and raised > value else None
    value = raised if bounded else value
    if not value or (sized is None and (was is None or value <= was)):
        return []  # a lower bound alone is no size
    largest = max((node.memory_bytes for node in evidence.view.cluster.nodes), default=0) or None
    if largest is not None and value > largest:
        if stuck := [kill for kill in evidence.unknown if largest < 1.05 * kill.limit_bytes]:
            reason = because(
                "LargestNodeTooSmall",
                limit_bytes=max(kill.limit_bytes for kill in stuck),
                node_bytes=largest,
                kills=sum(len(kill.times_ms) for kill in stuck),
            )
            return [_warning(evidence, reason, None)]
        value = largest
    warnings = _warnings(evidence, value)
    if was is not None and abs(value - was) < unchanged * was:
        return warnings
    blocked = obstacle_to_lower(evidence.view) if was is not None and value < was else ""
    level = evidence.view.similar.level
    if bounded is not None:
        runs, peak = len({peak.job.uid for peak in evidence.least}), bounded.memory_bytes
        reason = because("LowerBound", runs=runs, peak_bytes=peak, margin_percent=_MARGIN_PERCENT)
    elif blocked:
        known: Arguments = {"runs": len(evidence.runs), "level": level, "estimate_bytes": value}
        reason = because("NotLowered", **known, because=blocked)
    else:
        assert sized is not None
        reason = _size_reason(evidence, sized, value)
    wider = range_factor(level)
    low = (sized.low_bytes if sized else value) / wider
    # Runs that did not end say nothing about how much more they would have needed.
    high = max(sized.high_bytes if sized else 2 * value, value) * wider
    advice = evidence.advice(
        What.MEMORY,
        reason,
        value=was if blocked else value,
        low=min(low, value),
        high=high if largest is None else max(min(high, largest), value),
    )
    return [advice, *warnings]


_MARGIN_PERCENT = round(100 * (MARGIN - 1))


def _size_reason(evidence: _Evidence, sized: _MemorySize, value: int) -> Reason:
    if kill := sized.kill:
        same = [other for other in evidence.killed if other.limit_bytes == kill.limit_bytes]
        return because(
            "OutOfMemory",
            limit_bytes=kill.limit_bytes,
            kills=sum(len(other.times_ms) for other in same),
            ranks=len({other.rank for other in same}),
            runs=len({other.job.uid for other in same}),
            rank=kill.rank,
        )
    highest = max(evidence.peaks, key=lambda peak: (peak.memory_bytes, peak.at_ms))
    ended = [last_ms(run.job) for run in evidence.runs]
    was, replicas = evidence.was or value, evidence.size.replicas
    arguments: Arguments = {
        "runs": len({peak.job.uid for peak in evidence.peaks}),
        "level": evidence.view.similar.level,
        "stem": evidence.view.run.job.stem,
        "first_ms": min(ended),
        "last_ms": max(ended),
        "margin_percent": _MARGIN_PERCENT,
        "ooms": len({kill.job.uid for kill in evidence.killed}),
        "replicas": replicas,
        "saved_bytes": (was - value) * replicas,
    }
    if sized.basis_bytes < highest.memory_bytes:
        arguments |= {"usual_bytes": sized.basis_bytes, "highest_bytes": highest.memory_bytes}
        return because("UsualPeak", **arguments)
    arguments |= {
        "peak_bytes": highest.memory_bytes,
        "peak_rank": highest.rank,
        "peak_run": highest.job.name,
    }
    return because("HighestPeak", **arguments)


def _warnings(evidence: _Evidence, value: int) -> list[Advice]:
    """At most one: the limit kills again and again, or the user asks for less than is needed."""
    by_limit: dict[int, list[Kill]] = {}
    for kill in evidence.unknown:
        by_limit.setdefault(kill.limit_bytes, []).append(kill)
    for limit, killed in sorted(by_limit.items(), reverse=True):
        runs = len({kill.job.uid for kill in killed})
        times = [at_ms for kill in killed for at_ms in kill.times_ms]
        span = max(times) - min(times)
        if runs >= _FEWEST_KILLED_RUNS or (len(times) >= _MANY_KILLS and span >= _DAY_MS):
            reason = because(
                "LimitTooLow",
                limit_bytes=limit,
                kills=len(times),
                runs=runs,
                days=max(-(-span // _DAY_MS), 1),
                need_bytes=value,
            )
            return [_warning(evidence, reason, value)]
    was = evidence.was
    if was is None or value <= was * (1 + UNCHANGED) or not (evidence.runs or evidence.killed):
        return []
    ooms, runs = len({kill.job.uid for kill in evidence.killed}), len(evidence.runs)
    known: Arguments = {"request_bytes": was, "need_bytes": value, "runs": runs, "ooms": ooms}
    return [_warning(evidence, because("RequestBelowNeed", **known), value)]


def _warning(evidence: _Evidence, reason: Reason, value: int | None) -> Advice:
    return evidence.advice(What.WARNING, reason, value=value, target=reason.code)
