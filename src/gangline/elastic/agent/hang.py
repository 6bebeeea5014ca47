"""Whether workers hang, and which of them the others wait for.

Signs of progress are the files that training code touches with each step
(``GANGLINE_PROGRESS_FILE``, or ``RUNTIME_METRICS_PATH`` as DLRover's trainers do). Where a script
touches neither, processor time is the sign: workers that wait for each other over gloo use none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.api.failure import Blame, Failure, Remedy

PROGRESS_VARIABLE = "GANGLINE_PROGRESS_FILE"
METRICS_VARIABLE = "RUNTIME_METRICS_PATH"
BUSY_SHARE = 0.02
"""Processor time per second from which on a worker counts as busy."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$')
_WAITS_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is known of one worker's progress."""

    touched: float | None
    """When it last said that it had made a step; None if it never has."""
    busy_s: float
    """Processor time it has used so far."""


@dataclass(slots=True)
class HangWatch:
    """Remembers the last progress of a group. Times are of one clock."""

    timeout_s: float
    since: float
    """When the group last made progress, or was started."""
    _busy_s: float = 0.0
    _looked: float | None = None

    def is_hung(self, pulses: list[Pulse], now: float) -> bool:
        """Note what is seen; say whether nothing has happened for too long."""
        touches = [each.touched for each in pulses if each.touched is not None]
        if touches:
            self.since = max(self.since, *touches)
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
    """Read the stacks that faulthandler has written; the main thread is the last of them."""
    main = stacks.rpartition("(most recent call first):")[2]
    for line in main.splitlines():
        if found := _FRAME.match(line):
            return Place(found["file"], int(found["line"]), found["function"])
    return None


def hang_failure(places: Mapping[int, Place | None], timeout_s: float) -> Failure:
    """Say who did not arrive where the others wait.

    Args:
        places: where each rank is; None where it wrote no stack.
        timeout_s: how long nothing has happened.
    """
    missing = {rank: at for rank, at in places.items() if at is None or not at.waits}
    waiting = [str(rank) for rank in places if rank not in missing]
    if missing and waiting:
        told = ", ".join(f"rank {rank} is {_where(at)}" for rank, at in missing.items())
        message = f"{told}; waiting for it: rank {', '.join(waiting)}"
    else:
        message = "; ".join(f"rank {rank} is {_where(at)}" for rank, at in places.items())
    explanation = f"No worker has made progress for {timeout_s:g} s."
    return Failure("Hang", Blame.CODE, Remedy.RETRY, explanation, None, message)


def _where(at: Place | None) -> str:
    return f"at {at}" if at else "somewhere that writes no stack"
