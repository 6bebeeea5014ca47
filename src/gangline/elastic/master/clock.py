"""The job's clock: seconds that pass while there is a master, whichever process that is.

It goes on where the journal ends, so that a lease or a last call is not over because the master
was away. Wall clocks of different machines are never compared; this machine's is read once at the
start, to say how long there was no master.
"""

import time
from collections.abc import Callable


class JobClock:
    """Counts from a given time on."""

    def __init__(self, start: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = start - monotonic()

    def now(self) -> float:
        """Return the time of the job."""
        return self._monotonic() + self._offset
