"""The job's clock: seconds during which a master has been running, whichever process that was.

It continues where the journal ends, so that a lease or a last call does not expire while there is
no master. The length of that time follows from clock readings in the journal: on one machine,
without a reboot in between, from a monotonic clock; else from wall clocks, the only time that two
machines share.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class ClockReading(msgspec.Struct, frozen=True):
    """A reading of all available clocks."""

    wall_s: float
    """Seconds since 1970."""
    boot: str = ""
    """Identifier of the machine's boot; empty if unknown."""
    up_s: float = 0.0
    """Seconds since that boot, including suspended time."""

    def seconds_until(self, later: "ClockReading") -> float:
        """Return the seconds until a later reading; never negative."""
        is_same = bool(self.boot) and self.boot == later.boot
        passed = later.up_s - self.up_s if is_same else later.wall_s - self.wall_s
        return max(0.0, passed)


def read_clocks() -> ClockReading:
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return ClockReading(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME))


class JobClock:
    """A clock that starts at a given time of the job."""

    def __init__(self, start: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = start - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset
