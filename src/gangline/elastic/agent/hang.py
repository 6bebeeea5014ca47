"""Hang detection: whether workers make progress, and for which ranks the others wait.

Progress is a change of the files that training code touches in each step
(``GANGLINE_PROGRESS_FILE``, or ``RUNTIME_METRICS_PATH`` as DLRover's trainers do). If a script
touches neither, processor time counts: workers that wait for each other over gloo use none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gangline.api.failure import Blame, Failure, Remedy

BUSY_SHARE = 0.02
"""A worker is busy from this much processor time per second on."""
_TOLD = 16
"""Maximum number of ranks in a message."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$')
_WAITS_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


@dataclass(frozen=True, slots=True)
class Pulse:
    """One observation of a worker's progress."""

    touched: float | None
    """Modification time of its progress files; None if it never touched them. Only a change counts,
    because that clock may jump.
    """
    busy_s: float
    """Processor time used since its start."""


@dataclass(slots=True)
class HangWatch:
    """Tracks the last progress of a worker group. Times are of a monotonic clock."""

    timeout_s: float
    since: float
    """Time of the last progress, or of the start."""
    _touches: tuple[float | None, ...] = ()
    _busy_s: float = 0.0
    _looked: float | None = None

    def is_hung(self, pulses: list[Pulse], now: float) -> bool:
        """Record samples of all workers. Returns True if there was no progress for the timeout."""
        touches = tuple(sample.touched for sample in pulses)
        if any(touch is not None for touch in touches):
            if touches != self._touches:
                self.since, self._touches = now, touches
        elif self._is_busy(sum(sample.busy_s for sample in pulses), now):
            self.since = now
        return now - self.since > self.timeout_s

    def _is_busy(self, busy_s: float, now: float) -> bool:
        before, then = self._busy_s, self._looked
        self._busy_s, self._looked = busy_s, now
        return then is not None and busy_s - before > BUSY_SHARE * (now - then)


@dataclass(frozen=True, slots=True)
class Place:
    """The innermost frame of a worker's main thread."""

    file: str
    line: int
    function: str

    @property
    def waits(self) -> bool:
        """True if this frame waits for other ranks."""
        return any(part in self.file for part in _WAITS_IN)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def place(stacks: str) -> Place | None:
    """Parse stacks in the format of faulthandler, in which the main thread is the last one."""
    main = stacks.rpartition("(most recent call first):")[2]
    for line in main.splitlines():
        if found := _FRAME.match(line):
            return Place(found["file"], int(found["line"]), found["function"])
    return None


@dataclass(frozen=True, slots=True)
class View:
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

    @classmethod
    def of(
        cls, rank: int, node: str, at: Place | None, step: int | None, *, is_mute: bool = False
    ) -> Self:
        """Create it from a location. A rank that does not answer is not considered waiting."""
        waits = at is not None and at.waits and not is_mute
        return cls(rank, node, str(at) if at else "", waits, step, is_mute)

    def __str__(self) -> str:
        at = f"at {self.where}" if self.where else "at an unknown location (no stack)"
        at += " and does not answer" if self.where and self.is_mute else ""
        step = "" if self.step is None else f", after step {self.step}"
        return f"rank {self.rank}{f' on {self.node}' if self.node else ''} is {at}{step}"


def hang_failure(views: Sequence[View], timeout_s: float, evidence: str = "") -> Failure:
    """Describe a hang: the ranks to blame, and the ranks that wait for them.

    Args:
        views: all ranks whose stacks were collected.
        timeout_s: time without progress.
        evidence: a sentence that says where more can be read.
    """
    missing = _missing(sorted(views, key=lambda each: each.rank))
    named = {stack.rank for stack in missing}
    waiting = sorted(stack.rank for stack in views if stack.rank not in named)
    message = "; ".join(map(str, missing[:_TOLD]))
    if len(missing) > _TOLD:
        message += f"; and {len(missing) - _TOLD} more"
    if waiting:
        message += f"; waiting for it: rank {', '.join(map(str, waiting[:_TOLD]))}"
    if len(waiting) > _TOLD:
        message += f" and {len(waiting) - _TOLD} more"
    explanation = f"No worker has made progress for {timeout_s:g} s. {evidence}".rstrip()
    return Failure("Hang", Blame.CODE, Remedy.RETRY, explanation, None, message)


def _missing(views: Sequence[View]) -> Sequence[View]:
    """Return the ranks for which the others wait; all ranks if none differs."""
    absent = [stack for stack in views if not stack.waits]
    if absent and len(absent) < len(views):
        return absent
    stuck = [stack for stack in views if not stack.where or stack.is_mute]
    if stuck and len(stuck) < len(views):
        return stuck  # these are stopped or blocked in the kernel: all others did answer
    steps = [stack.step for stack in views if stack.step is not None]
    behind = [stack for stack in views if stack.step is not None and stack.step == min(steps)]
    return behind if behind and len(behind) < len(views) else views
