"""Whether workers hang, and which of them the others wait for.

Signs of progress are the files that training code touches with each step
(``GANGLINE_PROGRESS_FILE``, or ``RUNTIME_METRICS_PATH`` as DLRover's trainers do). Where a script
touches neither, processor time is the sign: workers that wait for each other over gloo use none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gangline.api.failure import Blame, Failure, Remedy

BUSY_SHARE = 0.02
"""Processor time per second from which on a worker counts as busy."""
_TOLD = 16
"""So many ranks are listed at most."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$')
_WAITS_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is known of one worker's progress."""

    touched: float | None
    """When it last said that it had made a step, by the clock of its files; None if it never has.
    Only a change of it tells anything: that clock may jump."""
    busy_s: float
    """Processor time it has used so far."""


@dataclass(slots=True)
class HangWatch:
    """Remembers the last progress of a group. Times are of a clock that never jumps."""

    timeout_s: float
    since: float
    """When the group last made progress, or was started."""
    _touches: tuple[float | None, ...] = ()
    _busy_s: float = 0.0
    _looked: float | None = None

    def is_hung(self, pulses: list[Pulse], now: float) -> bool:
        """Note what is seen; say whether nothing has happened for too long."""
        touches = tuple(each.touched for each in pulses)
        if any(each is not None for each in touches):
            if touches != self._touches:
                self.since, self._touches = now, touches
        elif self._is_busy(sum(each.busy_s for each in pulses), now):
            self.since = now
        return now - self.since > self.timeout_s

    def _is_busy(self, busy_s: float, now: float) -> bool:
        before, then = self._busy_s, self._looked
        self._busy_s, self._looked = busy_s, now
        return then is not None and busy_s - before > BUSY_SHARE * (now - then)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is: the innermost frame of its main thread."""

    file: str
    line: int
    function: str

    @property
    def waits(self) -> bool:
        """Whether it waits for others there."""
        return any(part in self.file for part in _WAITS_IN)

    def __str__(self) -> str:
        """The place as editors take it."""
        return f"{self.file}:{self.line} in {self.function}"


def place(stacks: str) -> Place | None:
    """Read stacks in the form of faulthandler's; the main thread is the last of them."""
    main = stacks.rpartition("(most recent call first):")[2]
    for line in main.splitlines():
        if found := _FRAME.match(line):
            return Place(found["file"], int(found["line"]), found["function"])
    return None


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of one rank while its group hangs."""

    rank: int
    node: str = ""
    where: str = ""
    """The place as editors take it; empty when it wrote no stack."""
    waits: bool = False
    """Whether it waits for others there."""
    step: int | None = None
    """The last step that it has told."""
    is_mute: bool = False
    """Whether it did not answer, and was seen from outside only."""

    @classmethod
    def of(
        cls, rank: int, node: str, at: Place | None, step: int | None, *, is_mute: bool = False
    ) -> Self:
        """Return the view of a rank at a place; one that does not answer waits for nobody."""
        waits = at is not None and at.waits and not is_mute
        return cls(rank, node, str(at) if at else "", waits, step, is_mute)

    def __str__(self) -> str:
        """The view for people."""
        at = f"at {self.where}" if self.where else "somewhere that writes no stack"
        at += " and does not answer" if self.where and self.is_mute else ""
        step = "" if self.step is None else f", after step {self.step}"
        return f"rank {self.rank}{f' on {self.node}' if self.node else ''} is {at}{step}"


def hang_failure(views: Sequence[View], timeout_s: float, evidence: str = "") -> Failure:
    """Say who did not arrive where the others wait.

    Args:
        views: of all ranks that could be seen.
        timeout_s: how long nothing has happened.
        evidence: a sentence about where more can be read.
    """
    missing = _missing(sorted(views, key=lambda each: each.rank))
    named = {each.rank for each in missing}
    waiting = sorted(each.rank for each in views if each.rank not in named)
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
    """Those for which the others wait; all when nobody stands out."""
    absent = [each for each in views if not each.waits]
    if absent and len(absent) < len(views):
        return absent
    stuck = [each for each in views if not each.where or each.is_mute]
    if stuck and len(stuck) < len(views):
        return stuck  # stopped, or in a call that does not end: the others could answer
    steps = [each.step for each in views if each.step is not None]
    behind = [each for each in views if each.step is not None and each.step == min(steps)]
    return behind if behind and len(behind) < len(views) else views
