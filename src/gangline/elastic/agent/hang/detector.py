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
STOPPED = "stopped (by SIGSTOP or a debugger; SIGCONT continues it)"
BLOCKED = "blocked in the kernel (uninterruptible, as while a file system does not answer)"
_MAX_RANKS_LISTED = 16
"""Maximum number of ranks in a message."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$')
_WAITING_PACKAGES = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """One observation of a worker's progress."""

    touched_at: float | None
    """Modification time of its progress files; None if it never touched them. Only a change counts,
    because that clock may jump.
    """
    busy_s: float
    """Processor time used since its start."""


@dataclass(slots=True)
class HangDetector:
    """Tracks the last progress of a worker group. Times are of a monotonic clock."""

    timeout_s: float
    since: float
    """Time of the last progress, or of the start."""
    _touches: tuple[float | None, ...] = ()
    _busy_s: float = 0.0
    _sampled_at: float | None = None

    def is_hung(self, samples: list[ProgressSample], now: float) -> bool:
        """Record samples of all workers. Returns True if there was no progress for the timeout."""
        touches = tuple(sample.touched_at for sample in samples)
        if any(touch is not None for touch in touches):
            if touches != self._touches:
                self.since, self._touches = now, touches
        elif self._is_busy(sum(sample.busy_s for sample in samples), now):
            self.since = now
        return now - self.since > self.timeout_s

    def _is_busy(self, busy_s: float, now: float) -> bool:
        before, then = self._busy_s, self._sampled_at
        self._busy_s, self._sampled_at = busy_s, now
        return then is not None and busy_s - before > BUSY_SHARE * (now - then)


@dataclass(frozen=True, slots=True)
class StackLocation:
    """The innermost frame of a worker's main thread."""

    file: str
    line: int
    function: str

    @property
    def is_waiting(self) -> bool:
        """True if this frame waits for other ranks."""
        return any(part in self.file for part in _WAITING_PACKAGES)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def parse_stack_location(stacks: str) -> StackLocation | None:
    """Parse stacks in the format of faulthandler, in which the main thread is the last one."""
    main = stacks.rpartition("(most recent call first):")[2]
    for line in main.splitlines():
        if found := _FRAME.match(line):
            return StackLocation(found["file"], int(found["line"]), found["function"])
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
    state: str = ""
    """What the kernel reports about a process that runs no code; empty for one that may run."""

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
    ) -> Self:
        """Create it from a location. A rank that does not answer is not considered waiting."""
        waits = location is not None and location.is_waiting and not is_mute and not state
        return cls(rank, node, str(location) if location else "", waits, step, is_mute, state)

    def __str__(self) -> str:
        at = f"at {self.where}" if self.where else "at an unknown location (no stack)"
        if self.state:
            at = f"{self.state}, {at}" if self.where else self.state
        elif self.where and self.is_mute:
            at += " and does not answer"
        step = "" if self.step is None else f", after step {self.step}"
        return f"rank {self.rank}{f' on {self.node}' if self.node else ''} is {at}{step}"


def hang_failure(stacks: Sequence[RankStack], timeout_s: float, evidence: str = "") -> Failure:
    """Describe a hang: the ranks to blame, and the ranks that wait for them.

    Args:
        stacks: all ranks whose stacks were collected.
        timeout_s: time without progress.
        evidence: a sentence that says where more can be read.
    """
    missing = _stacks_to_blame(sorted(stacks, key=lambda each: each.rank))
    named = {stack.rank for stack in missing}
    waiting = sorted(stack.rank for stack in stacks if stack.rank not in named)
    message = "; ".join(map(str, missing[:_MAX_RANKS_LISTED]))
    if len(missing) > _MAX_RANKS_LISTED:
        message += f"; and {len(missing) - _MAX_RANKS_LISTED} more"
    if waiting:
        message += f"; waiting for it: rank {', '.join(map(str, waiting[:_MAX_RANKS_LISTED]))}"
    if len(waiting) > _MAX_RANKS_LISTED:
        message += f" and {len(waiting) - _MAX_RANKS_LISTED} more"
    explanation = f"No worker has made progress for {timeout_s:g} s. {evidence}".rstrip()
    cause, blame = "Hang", Blame.CODE
    if missing and all(stack.state == STOPPED for stack in missing):
        cause, blame = "Stopped", Blame.PLATFORM
    return Failure(cause, blame, Remedy.RETRY, explanation, None, message)


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
