"""Hang detection: whether workers make progress, and for which ranks the others wait.

Progress is a change of the files that training code touches in each step
(``GANGLINE_PROGRESS_FILE``, or ``RUNTIME_METRICS_PATH`` as DLRover's trainers do). If a script
touches neither, or reports only rare saves, processor time counts: workers that wait for each other
over gloo use none. A group hangs if none of its workers uses any, and if one worker uses none
because a collective has not completed all the time, whatever the others do: a busy loop on one rank
is found in this way. Only stacks show why a worker is idle, so ``idle_workers`` are suspects until
their stacks confirm it. How long is too long depends on the phase, and is learned from step times.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import msgspec

from gangline.api.failure import Blame, Failure, Remedy
from gangline.api.figures import plain_number
from gangline.elastic.agent.settings import HangSettings

LEARNED_FACTOR = 10.0
"""A learned time-out is this multiple of the longest step so far."""
MIN_LEARNED_S = 30.0
MIN_LEARNED_IDLE_S = 300.0
"""Lowest learned time-out if the script reports no steps: idle workers may wait for data."""
_MIN_STEPS = 5
"""Steps before times count as learned."""
BUSY_SHARE = 0.02
"""A worker is busy from this much processor time per second on."""
STOPPED = "stopped (by SIGSTOP or a debugger; SIGCONT continues it)"
BLOCKED = "blocked in the kernel (uninterruptible, as while a file system does not answer)"
_MIN_SAVES = 3
"""Saves after which their frequency is known."""
_MAX_RANKS_LISTED = 16
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$')
_CHILDREN_WAITED_FOR = (
    "/torch/utils/data/", "/multiprocessing/", "/concurrent/futures/", "/subprocess.py"
)  # fmt: skip
_SWITCHES_PER_S = 2.0
"""A process that only waits, as PyTorch's loaders do, wakes up every few seconds."""
_WAITING_PACKAGES = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


class HangPhase(StrEnum):
    """What a worker group does, as far as its time-out is concerned."""

    START = "start"
    """No progress has been reported yet."""
    FIRST_STEP = "first_step"
    """Workers have reported once, but no step: compilation and the first collectives take time."""
    STEP = "step"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


@dataclass(slots=True)
class LearnedTimeout:
    """Longest time between two signs of progress in all attempts of this agent."""

    longest_s: float = 0.0
    count: int = 0
    reports_steps: bool = False
    """True if the script has reported progress in this or an earlier attempt."""

    def record(self, seconds: float) -> None:
        self.longest_s, self.count = max(self.longest_s, seconds), self.count + 1

    def timeout_s(self, default_s: float) -> float:
        """Return the learned time-out; the default while too few steps are known."""
        if self.count < _MIN_STEPS:
            return default_s
        least_s = MIN_LEARNED_S if self.reports_steps else MIN_LEARNED_IDLE_S
        return max(least_s, LEARNED_FACTOR * self.longest_s)


def phase_timeout_s(settings: HangSettings, phase: HangPhase, times: LearnedTimeout) -> float:
    """Return the time-out of a phase; a phase without its own has that of steps."""
    assert settings.timeout_s is not None
    own = {
        HangPhase.START: settings.start_s,
        HangPhase.FIRST_STEP: settings.first_step_s,
        HangPhase.EVALUATION: settings.evaluation_s,
        HangPhase.CHECKPOINT: settings.checkpoint_s,
    }.get(phase)
    if own is not None:
        return own
    if phase is HangPhase.STEP and settings.is_learned:
        return times.timeout_s(settings.timeout_s)
    return settings.timeout_s


def group_phase(
    reported: Sequence[str], *, has_touched: bool, has_steps: bool, touches: int
) -> HangPhase:
    """Return the phase of a group.

    Args:
        touches: how often the worker that reports most has touched its file.
    """
    for phase in (HangPhase.EVALUATION, HangPhase.CHECKPOINT):
        if phase in reported:
            return phase
    if not has_touched:
        return HangPhase.START
    return HangPhase.STEP if has_steps or touches > 1 else HangPhase.FIRST_STEP


@dataclass(frozen=True, slots=True)
class ProgressSample:
    touched_at: float | None
    """Modification time of its progress files; None if it never touched them. Only a change counts,
    because that clock may jump.
    """
    busy_s: float
    phase: str = ""
    """The phase that it reports: evaluation, checkpoint, or empty."""
    has_steps: bool = False
    lacks_steps: bool = False
    """True if it reports saves or phases only."""


@dataclass(slots=True)
class _WorkerActivity:
    """The processor time of one worker."""

    idle_since: float
    busy_s: float = 0.0
    touches: int = 0
    """How often its progress files have changed."""
    touched_at: float = 0.0
    """Time of the last change."""
    longest_gap_s: float = 0.0
    """Longest time between two changes."""

    def saves_often(self, limit_s: float) -> bool:
        """Return whether saves can count as steps: a script may save rarely."""
        return self.touches > _MIN_SAVES and self.longest_gap_s < limit_s / 2


@dataclass(slots=True)
class HangDetector:
    """Tracks the last progress of a worker group. Times are of a monotonic clock."""

    settings: HangSettings
    since: float
    """Time of the last progress, or of the start."""
    times: LearnedTimeout = field(default_factory=LearnedTimeout)
    phase: HangPhase = HangPhase.START
    limit_s: float = 0.0
    _started: float = field(init=False)
    _touches: tuple[float | None, ...] = ()
    _sampled_at: float | None = None
    _workers: list[_WorkerActivity] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started = self.since

    def is_hung(self, samples: Sequence[ProgressSample], now: float) -> bool:
        """Record samples of all workers. Returns True if there was no progress for the timeout."""
        touches = tuple(sample.touched_at for sample in samples)
        is_busy = self._record_activity(samples, now)
        if any(touch is not None for touch in touches) and touches != self._touches:
            self._record_touches(touches, now)
        has_touched = self._expects_reports(samples)
        self.times.reports_steps |= has_touched
        self.phase = group_phase(
            [sample.phase for sample in samples],
            has_touched=has_touched,
            has_steps=any(sample.has_steps for sample in samples),
            touches=max((worker.touches for worker in self._workers), default=0),
        )
        if self.phase is HangPhase.START and is_busy and not self._has_start_limit:
            self.since = now
        self.limit_s = phase_timeout_s(self.settings, self.phase, self.times)
        if self.phase is HangPhase.START and not self._has_start_limit:
            # A start may be busy for any time, and a script may never report.
            self.limit_s = phase_timeout_s(self.settings, HangPhase.STEP, self.times)
            return now - self.since > self.limit_s and self._is_start_over(now)
        return now - self.since > self.limit_s

    def idle_workers(self, now: float) -> frozenset[int]:
        """Return the positions of workers that have been idle for the time-out.

        Empty if workers report progress: then their reports decide.
        """
        if self.phase is not HangPhase.START or not self._is_start_over(now):
            return frozenset()
        return frozenset(
            number
            for number, worker in enumerate(self._workers)
            if now - worker.idle_since > self.limit_s
        )

    def dismiss(self, idle: Collection[int], now: float) -> None:
        """Record that these workers were idle for a reason that is no hang."""
        for number in idle:
            self._workers[number].idle_since = now

    @property
    def reported_phase(self) -> HangPhase:
        """The phase for messages: without reports the start looks like training."""
        is_unknown = self.phase is HangPhase.START and not self._has_start_limit
        return HangPhase.STEP if is_unknown else self.phase

    @property
    def _has_start_limit(self) -> bool:
        """True if a start that takes too long counts as hung although its workers are busy.

        The time-out must be requested, and the script must be known to report.
        """
        return self.settings.start_s is not None and self.times.reports_steps

    def _is_start_over(self, now: float) -> bool:
        return now - self._started > (self.settings.start_s or 0.0)

    def _expects_reports(self, samples: Sequence[ProgressSample]) -> bool:
        """Return whether the next step of a worker is to change its progress files."""
        step_s = self.settings.timeout_s or 0.0
        return any(
            sample.touched_at is not None and (not sample.lacks_steps or worker.saves_often(step_s))
            for worker, sample in zip(self._workers, samples, strict=True)
        )

    def _record_touches(self, touches: tuple[float | None, ...], now: float) -> None:
        before = self._touches or (None,) * len(touches)
        for worker, old, new in zip(self._workers, before, touches, strict=True):
            if old == new:
                continue
            if worker.touches:
                worker.longest_gap_s = max(worker.longest_gap_s, now - worker.touched_at)
            worker.touches, worker.touched_at = worker.touches + 1, now
        if self.phase is HangPhase.STEP:
            self.times.record(now - self.since)
        self.since, self._touches = now, touches

    def _record_activity(self, samples: Sequence[ProgressSample], now: float) -> bool:
        """Record the processor time of each worker. Returns True if the group is busy."""
        then, self._sampled_at = self._sampled_at, now
        if then is None:
            self._workers = [_WorkerActivity(self._started, sample.busy_s) for sample in samples]
            return False
        least_s, used_s = BUSY_SHARE * (now - then), 0.0
        for worker, sample in zip(self._workers, samples, strict=True):
            used, worker.busy_s = sample.busy_s - worker.busy_s, sample.busy_s
            used_s += used
            if used > least_s:
                if sample.touched_at is None or sample.lacks_steps:
                    self.times.record(now - worker.idle_since)
                worker.idle_since = now
        return used_s > least_s


@dataclass(frozen=True, slots=True)
class StackLocation:
    """The innermost frame of a worker's main thread."""

    file: str
    line: int
    function: str

    @property
    def is_waiting(self) -> bool:
        return any(part in self.file for part in _WAITING_PACKAGES)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What a process has done since its start."""

    ticks: int
    """Processor time, with that of children which have ended."""
    transferred: int
    """Bytes that it has read and written."""
    switches: int
    """How often it has waited for something."""
    is_runnable: bool = False
    """True if it runs, or waits for a processor: on a busy machine it may get none for a while."""


def have_worked(
    before: Mapping[int, ProcessActivity], after: Mapping[int, ProcessActivity], seconds: float
) -> bool:
    """Return whether one of the processes has worked, or has waited for storage in turns."""
    if before.keys() != after.keys():  # one has started, or has done its work
        return True
    for pid, activity in after.items():
        then = before[pid]
        if activity.ticks > then.ticks or activity.transferred > then.transferred:
            return True
        if activity.is_runnable or activity.switches - then.switches > _SWITCHES_PER_S * seconds:
            return True
    return False


def waits_for_children(stacks: str) -> bool:
    """Return whether the main thread waits for other processes, such as data loaders."""
    main = stacks.rpartition("(most recent call first):")[2]
    frames = filter(None, map(_FRAME.match, main.splitlines()))
    return any(part in frame["file"] for frame in frames for part in _CHILDREN_WAITED_FOR)


def parse_stack_location(stacks: str) -> StackLocation | None:
    """Parse stacks in the format of faulthandler, in which the main thread is the last one."""
    main = stacks.rpartition("(most recent call first):")[2]
    for line in main.splitlines():
        if frame := _FRAME.match(line):
            return StackLocation(frame["file"], int(frame["line"]), frame["function"])
    return None


@dataclass(frozen=True, slots=True)
class RankStack:
    """The stack location and the step of one rank of a hanging group."""

    rank: int
    node: str = ""
    where: str = ""
    """The location as ``file:line in function``; empty if no stack was obtained."""
    waits: bool = False
    """True if it waits for other ranks there."""
    step: int | None = None
    """The last step that it reported."""
    is_mute: bool = False
    """True if it did not write its stacks itself, so that they were read from outside."""
    state: str | msgspec.UnsetType = msgspec.UNSET
    """What the kernel reports about a process that runs no code. Not sent for one that may run:
    earlier agents do not know the field.
    """
    has_working_children: bool | msgspec.UnsetType = msgspec.UNSET
    """True if it waits for processes that it has started, and these work. Sent only then."""

    @classmethod
    def from_location(
        cls,
        rank: int,
        node: str,
        location: StackLocation | None,
        step: int | None,
        *,
        is_mute: bool = False,
        state: str = "",
        has_working_children: bool = False,
    ) -> Self:
        """Create it from a location. A rank that does not answer is not considered waiting."""
        waits = location is not None and location.is_waiting and not is_mute and not state
        return cls(
            rank,
            node,
            str(location) if location else "",
            waits,
            step,
            is_mute,
            state or msgspec.UNSET,
            has_working_children or msgspec.UNSET,
        )

    def __str__(self) -> str:
        at = f"at {self.where}" if self.where else "at an unknown location (no stack)"
        if self.state:
            at = f"{self.state}, {at}" if self.where else self.state
        elif self.where and self.is_mute:
            at += " and does not answer"
        step = "" if self.step is None else f", after step {self.step}"
        return f"rank {self.rank}{f' on {self.node}' if self.node else ''} is {at}{step}"


def hang_failure(
    stacks: Sequence[RankStack],
    timeout_s: float,
    evidence: str = "",
    phase: HangPhase = HangPhase.STEP,
) -> Failure:
    """Describe a hang: the ranks to blame, and the ranks that wait for them.

    Args:
        evidence: a sentence that says where more can be read.
    """
    missing = _stacks_to_blame(sorted(stacks, key=lambda stack: stack.rank))
    named = {stack.rank for stack in missing}
    waiting = sorted(stack.rank for stack in stacks if stack.rank not in named)
    message = "; ".join(map(str, missing[:_MAX_RANKS_LISTED]))
    if len(missing) > _MAX_RANKS_LISTED:
        message += f"; and {len(missing) - _MAX_RANKS_LISTED} more"
    if waiting:
        message += f"; waiting for it: rank {', '.join(map(str, waiting[:_MAX_RANKS_LISTED]))}"
    if len(waiting) > _MAX_RANKS_LISTED:
        message += f" and {len(waiting) - _MAX_RANKS_LISTED} more"
    during = "" if phase is HangPhase.STEP else f" (phase {phase})"
    explanation = (
        f"No worker has made progress for {plain_number(timeout_s)} s{during}. {evidence}".rstrip()
    )
    cause, blame = "Hang", Blame.CODE
    if missing and all(stack.state == STOPPED for stack in missing):
        cause, blame = "Stopped", Blame.PLATFORM
    return Failure(cause, blame, Remedy.RETRY, explanation, None, message)


def working_ranks(stacks: Sequence[RankStack]) -> list[int]:
    """Return the ranks for which the others wait rightly: their data loaders still work."""
    blamed = _stacks_to_blame(stacks)
    return [stack.rank for stack in blamed if stack.has_working_children is True]


def blamed_ranks(stacks: Sequence[RankStack]) -> frozenset[int]:
    """Return the ranks for which the others wait; all ranks if none differs."""
    return frozenset(stack.rank for stack in _stacks_to_blame(stacks))


def _stacks_to_blame(stacks: Sequence[RankStack]) -> Sequence[RankStack]:
    halted = [stack for stack in stacks if stack.state]
    if halted:
        return halted
    absent = [stack for stack in stacks if not stack.waits]
    if absent and len(absent) < len(stacks):
        return absent
    stuck = [stack for stack in stacks if not stack.where or stack.is_mute]
    if stuck and len(stuck) < len(stacks):
        return stuck  # these are stopped or blocked in the kernel: all others did answer
    steps = [stack.step for stack in stacks if stack.step is not None]
    behind = [stack for stack in stacks if stack.step is not None and stack.step == min(steps)]
    return behind if behind and len(behind) < len(stacks) else stacks
