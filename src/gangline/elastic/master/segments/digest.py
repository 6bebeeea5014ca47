"""Cuts the training of a job into segments: stretches of steps with the same settings.

The node of rank 0 counts the steps. A segment ends when any setting changes, when the workers start
again, when the warm-up ends, and after five minutes. Only closed segments leave the digest, so a
reader that sees one twice sees the same facts. Steps between the last report of a segment and the
first one with other settings belong to neither.

Durations come from the job's clock, which is monotonic; dates from the wall clock. If the two
disagree, the segment is disturbed. Moments of step times are added and subtracted as in Chan, Golub
and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field, replace
from typing import Final, Self

from gangline.api.jobs.training_facts import (
    DISTURBED,
    FACTS_MAX_SEGMENTS,
    GOOD,
    WARM_UP,
    RestartFacts,
    SegmentFacts,
    StepSeconds,
)
from gangline.elastic.master.segments.windows import WorldSums, rounded
from gangline.elastic.progress import ReportedShape, StepTimes
from gangline.elastic.protocol.messages import GoodputReport, Heartbeat, NodeReport

SEGMENT_S = 300.0
WARM_UP_STEPS = 20
WARM_UP_S = 60.0
"""The warm-up ends after this many steps, or after this time and a step."""
GAP_S = 30.0
"""A leader that reports nothing for this time disturbs the segment."""
CLOCK_DRIFT_MS = 2000
"""Difference of the two clocks over a segment from which on it is disturbed."""
LOST_SHARE = 0.2
"""Share of a segment without training from which on it is disturbed."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of some observations."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of squared deviations from the mean."""

    def merge(self, other: "Moments") -> Self:
        count = self.count + other.count
        if count == 0:
            return type(self)()
        difference = other.mean - self.mean
        return type(self)(
            count,
            self.mean + difference * other.count / count,
            self.m2 + other.m2 + difference**2 * self.count * other.count / count,
        )

    def without(self, part: "Moments") -> Self:
        """Return the moments of the observations that are not in ``part``, which are the first.

        Empty if ``part`` is no part of these observations.
        """
        count = self.count - part.count
        if count <= 0:
            return type(self)()
        mean = self.mean + (self.mean - part.mean) * part.count / count
        spread = (mean - part.mean) ** 2 * count * part.count / self.count
        return type(self)(count, mean, max(0.0, self.m2 - part.m2 - spread))


NO_MOMENTS: Final = Moments()


@dataclass(frozen=True, slots=True)
class WindowMoments:
    """Moments of means over windows of several steps, for scripts that report step numbers only."""

    windows: int = 0
    steps: Moments = NO_MOMENTS
    """Each step counts with the mean of its window."""

    def add(self, steps: int, seconds: float) -> Self:
        """Add a window of at least one step."""
        merged = self.steps.merge(Moments(steps, seconds / steps))
        return type(self)(self.windows + 1, merged)

    def moments(self) -> Moments:
        """Return moments with a window as one observation.

        So ``m2 / (count - 1) / count`` still is the squared standard error of the mean. The
        variance of single steps cannot be known.
        """
        if not self.windows:
            return NO_MOMENTS
        m2 = self.steps.m2 * self.windows / self.steps.count
        return Moments(self.windows, self.steps.mean, m2)


NO_WINDOWS: Final = WindowMoments()


@dataclass(frozen=True, slots=True)
class Instant:
    """The same moment on two clocks."""

    job_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class WorldMembers:
    """A world, as far as segments need it."""

    round: int
    leader: int
    procs: int
    ranks: dict[int, int]
    """Rank of each node in the world, by node id."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What may not change within a segment. None is not reported yet."""

    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    device_model: str | None = None
    loader_workers: int | None = None

    @staticmethod
    def of(report: NodeReport | None) -> "_Settings":
        if report is None:
            return _Settings()
        return _Settings(
            report.batch_size,
            report.accumulation,
            report.global_batch,
            report.device_model or None,
            report.loader_workers,
        )

    def differs(self, later: "_Settings") -> bool:
        return any(
            mine is not None and theirs is not None and mine != theirs
            for mine, theirs in zip(astuple(self), astuple(later), strict=True)
        )

    def completed(self, later: "_Settings") -> "_Settings":
        pairs = zip(astuple(self), astuple(later), strict=True)
        return _Settings(*(mine if theirs is None else theirs for mine, theirs in pairs))


@dataclass(slots=True)
class _OpenSegment:
    since: Instant
    until: Instant
    first_step: int
    last_step: int
    quality: str
    settings: _Settings
    times_before: Moments
    """Moments of the leader's process at the beginning."""
    times: Moments = NO_MOMENTS
    """Moments of the steps of this segment, if the script reports them."""
    windows: WindowMoments = NO_WINDOWS
    nodes: WorldSums = field(default_factory=WorldSums)
    is_disturbed: bool = False


@dataclass(slots=True)
class _Attempt:
    """One start of the workers."""

    number: tuple[int, int]
    began: Instant
    first_step: int | None = None
    """The first step; None before it is known."""
    times: Moments = NO_MOMENTS
    step: int | None = None
    step_at: Instant | None = None
    """Time of the first report of that step."""
    at: Instant | None = None
    reports_details: bool = False
    was_seen_starting: bool = False
    """True if all its steps are known: it began after the master did, or without a step."""


class SegmentDigest:
    def __init__(
        self,
        goodput: Callable[[], GoodputReport],
        running: tuple[int, int] = (-1, -1),
        segment_s: float = SEGMENT_S,
    ) -> None:
        """Begin without segments.

        Args:
            running: round and attempt of the workers that were running before this process started.
        """
        self._goodput, self._counted, self._segment_s = goodput, running, segment_s
        self.segments: deque[SegmentFacts] = deque(maxlen=FACTS_MAX_SEGMENTS)
        self.closed = 0
        self.model: ReportedShape | None = None
        self._world: WorldMembers | None = None
        self._attempt: _Attempt | None = None
        self._open: _OpenSegment | None = None
        self._steps_of: dict[int, int] = {}
        """Last step of each node, for the weight of its reports."""
        self._account: GoodputReport | None = None
        """Account of time when the last segment was closed."""

    def restore(self, segments: Iterable[SegmentFacts]) -> None:
        """Put the segments that an earlier master has published before those of this one."""
        self.segments = deque([*segments, *self.segments], maxlen=FACTS_MAX_SEGMENTS)

    def observe(self, world: WorldMembers, heartbeat: Heartbeat, at: Instant) -> None:
        """Add a heartbeat of a member of the world whose workers run."""
        if self._account is None:
            self._account = self._goodput()
        if self._world is None or self._world.round != world.round:
            self.interrupt()
            self._world = world
        if heartbeat.round != world.round:
            return
        node = heartbeat.node_id
        if node == world.leader:
            self._observe_leader(heartbeat, at)
        report, attempt = heartbeat.node, self._attempt
        if report is None or attempt is None or self._open is None:
            return
        if (heartbeat.round, heartbeat.attempt) != attempt.number:
            return
        step = heartbeat.step or 0
        self._open.nodes.add(
            node, world.ranks.get(node, 0), report, step - self._steps_of.get(node, step)
        )
        self._steps_of[node] = step
        if report.model is not None:
            self.model = report.model

    def interrupt(self) -> None:
        """The workers of the present attempt have ended, or their world has."""
        self._close()
        if self._attempt is not None:
            # A heartbeat that was on its way may come after this. Its steps are counted already.
            self._counted = max(self._counted, self._attempt.number)
        self._attempt = None
        self._steps_of.clear()

    def _observe_leader(self, heartbeat: Heartbeat, at: Instant) -> None:
        number = (heartbeat.round, heartbeat.attempt)
        if self._attempt is None or self._attempt.number != number:
            self.interrupt()
            is_new = heartbeat.step is None or number > self._counted
            self._attempt = _Attempt(number, at, was_seen_starting=is_new)
        attempt, report = self._attempt, heartbeat.node
        if heartbeat.step is None:
            return
        is_detailed = report is not None and report.step_times is not None
        if is_detailed and not attempt.reports_details:
            attempt.reports_details = True
            if not attempt.was_seen_starting:
                # The totals of the process include steps before the segment that heartbeats
                # without them began. Count from here.
                self._open, attempt.step, attempt.step_at = None, None, None
        if attempt.reports_details and not is_detailed:
            return  # all values of a segment are of the same moments
        self._commit(attempt, heartbeat.step, heartbeat.first_step, report, at)

    def _commit(
        self,
        attempt: _Attempt,
        step: int,
        first_step: int | None,
        report: NodeReport | None,
        at: Instant,
    ) -> None:
        """Add what the leader reports to the open segment; close and open segments."""
        times = _moments(report.step_times if report is not None else None)
        if attempt.step is None:
            attempt.first_step = step if first_step is None else first_step
            if attempt.was_seen_starting:
                attempt.step, attempt.at = attempt.first_step - 1, attempt.began
                attempt.step_at = attempt.began
        settings = _Settings.of(report)
        is_behind = attempt.step is not None and step < attempt.step
        if self._open is not None and (is_behind or self._open.settings.differs(settings)):
            self._close()
            attempt.step = attempt.step_at = None
        if self._open is None and attempt.step is not None:
            self._begin(attempt, settings)
        if self._open is not None:
            self._extend(self._open, attempt, step, times, at)
            self._open.settings = self._open.settings.completed(settings)
        if step != attempt.step:
            attempt.step, attempt.step_at = step, at
        attempt.at, attempt.times = at, times
        if self._open is None:
            self._begin(attempt, settings)
        elif self._is_over(self._open, attempt, at):
            settings = self._open.settings
            self._close()
            self._begin(attempt, settings)

    def _begin(self, attempt: _Attempt, settings: _Settings) -> None:
        """Open a segment of the steps after the latest one of the attempt."""
        step, at = attempt.step, attempt.step_at
        assert step is not None
        assert at is not None
        quality = GOOD if _is_warm(attempt, step, at) else WARM_UP
        last = self.segments[-1] if self.segments else None
        if last is not None and at.wall_ms <= last.since:  # the wall clock was set back
            at = replace(at, wall_ms=last.since + 1)
        self._open = _OpenSegment(at, at, step, step, quality, settings, attempt.times)

    @staticmethod
    def _extend(
        segment: _OpenSegment, attempt: _Attempt, step: int, times: Moments, at: Instant
    ) -> None:
        assert attempt.step is not None
        assert attempt.step_at is not None
        assert attempt.at is not None
        is_start = attempt.step_at is attempt.began
        if at.job_s - attempt.at.job_s > GAP_S and not is_start:
            segment.is_disturbed = True
        if step > attempt.step:
            passed_s = at.job_s - attempt.step_at.job_s
            if passed_s > 0 and not is_start:  # the time before the first step is no step time
                segment.windows = segment.windows.add(step - attempt.step, passed_s)
            segment.last_step, segment.until = step, at
        segment.times = times.without(segment.times_before)

    def _is_over(self, segment: _OpenSegment, attempt: _Attempt, at: Instant) -> bool:
        assert attempt.step is not None
        if not (segment.times.count or segment.windows.windows):
            return False  # nothing is known of its steps yet
        is_warm = segment.quality == WARM_UP and _is_warm(attempt, attempt.step, at)
        return is_warm or at.job_s - segment.since.job_s >= self._segment_s

    def _close(self) -> None:
        segment, self._open = self._open, None
        if segment is None or self._attempt is None or self._world is None:
            return
        moments = segment.times if segment.times.count else segment.windows.moments()
        if segment.last_step <= segment.first_step or not moments.count or moments.mean <= 0:
            return
        self.segments.append(self._facts(segment, moments, self._world, self._attempt.number[0]))
        self.closed += 1

    def _facts(
        self, segment: _OpenSegment, moments: Moments, world: WorldMembers, round_: int
    ) -> SegmentFacts:
        seconds = segment.until.job_s - segment.since.job_s
        until_ms = segment.since.wall_ms + round(seconds * 1000)
        drift_ms = abs(segment.until.wall_ms - until_ms)
        restarts = self._restarts()
        lost_s = sum(restarts.seconds.values()) if restarts is not None else 0.0
        quality = segment.quality
        disturbed = segment.is_disturbed or drift_ms > CLOCK_DRIFT_MS
        if disturbed or (quality == GOOD and lost_s > LOST_SHARE * seconds):
            quality = DISTURBED
        nodes, settings = segment.nodes, segment.settings
        return SegmentFacts(
            round=round_,
            since=segment.since.wall_ms,
            until=max(until_ms, segment.since.wall_ms),
            nodes=len(world.ranks),
            procs=world.procs,
            steps=segment.last_step - segment.first_step,
            step_seconds=StepSeconds(moments.count, rounded(moments.mean), rounded(moments.m2)),
            quality=quality,
            devices_per_node=nodes.devices_per_node(),
            device_model=",".join(nodes.device_models()),
            micro_batch=settings.micro_batch,
            accumulation=settings.accumulation,
            global_batch=settings.global_batch,
            step_first=segment.first_step + 1,
            step_last=segment.last_step,
            compute_seconds=_optional(nodes.mean_s("compute_s")),
            sync_seconds=_optional(nodes.mean_s("sync_s")),
            data_seconds=_optional(nodes.mean_s("data_s")),
            slowest=nodes.slowest(),
            grad_sqr=_optional(nodes.mean_of_last("grad_sqr")),
            grad_var=_optional(nodes.mean_of_last("grad_var")),
            memory_peak=nodes.peaks(),
            device_memory=nodes.device_memory(),
            loader_workers=settings.loader_workers,
            save_seconds=_optional(nodes.maximum_of_last("save_s")),
            save_interval_seconds=_optional(nodes.maximum_of_last("save_interval_s")),
            saves_adapt=bool(nodes.maximum_of_last("saves_adapt")),
            restarts=restarts,
        )

    def _restarts(self) -> RestartFacts | None:
        """Return restarts and lost time since the last segment was closed; None without any."""
        before, now = self._account, self._goodput()
        self._account = now
        if before is None:
            return None
        passed = {
            phase: seconds - before.parts_s.get(phase, 0.0)
            for phase, seconds in now.parts_s.items()
        }
        lost = {phase: round(seconds, 2) for phase, seconds in passed.items() if seconds >= 0.01}
        count = max(0, now.restarts - before.restarts)
        return RestartFacts(count, lost) if count or lost else None


def _is_warm(attempt: _Attempt, step: int, at: Instant) -> bool:
    """Return whether the warm-up of the attempt is over after ``step``."""
    first = step + 1 if attempt.first_step is None else attempt.first_step
    steps = step - first + 1
    return steps >= WARM_UP_STEPS or (steps > 0 and at.job_s - attempt.began.job_s >= WARM_UP_S)


def _moments(times: StepTimes | None) -> Moments:
    return NO_MOMENTS if times is None else Moments(times.count, times.mean_s, times.m2)


def _optional(value: float | None) -> float | None:
    return None if value is None else rounded(value)
