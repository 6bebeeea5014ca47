"""The job's clock: seconds that pass while there is a master, whichever process that is.

It goes on where the journal ends, so that a lease or a last call is not over because the master
was away. How long it was away follows from the moments that masters write down: on one machine,
as long as that was not started anew, from a clock that never jumps; else from wall clocks, which
is the only time that two machines can compare.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Moment(msgspec.Struct, frozen=True):
    """A moment, by all clocks that there are."""

    wall_s: float
    """Seconds since 1970."""
    boot: str = ""
    """Which start of which machine; empty: not known."""
    up_s: float = 0.0
    """Seconds since that start, also those in which the machine slept."""

    def until(self, later: "Moment") -> float:
        """Return the seconds until a later moment; never less than none."""
        is_same = bool(self.boot) and self.boot == later.boot
        passed = later.up_s - self.up_s if is_same else later.wall_s - self.wall_s
        return max(0.0, passed)


def moment() -> Moment:
    """Return this moment."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return Moment(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME))


class JobClock:
    """Counts from a given time on."""

    def __init__(self, start: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = start - monotonic()

    def now(self) -> float:
        """Return the time of the job."""
        return self._monotonic() + self._offset
