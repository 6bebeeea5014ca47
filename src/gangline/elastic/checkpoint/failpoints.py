"""Named points at which a test kills the process, to test a crash between any two writes.

``GANGLINE_FAILPOINT`` is ``NAME:N`` (die when NAME is reached for the Nth time) or ``*:N`` (die at
the Nth point of any name). If it is unset, a point costs one comparison. The dying process appends
the point's name to the file in ``GANGLINE_FAILPOINT_RECORD``, so that a test can check it.
"""

import os
import signal
from functools import cache

VARIABLE = "GANGLINE_FAILPOINT"
RECORD = "GANGLINE_FAILPOINT_RECORD"
_reached: dict[str, int] = {}


@cache
def _armed() -> tuple[str, int] | None:
    name, _, count = os.environ.get(VARIABLE, "").partition(":")
    return (name, int(count or 1)) if name else None


def arm_failpoint(point: str) -> None:
    """Let this process die at ``wish``, counted from now; for tests that fork."""
    os.environ[VARIABLE] = point
    _reached.clear()
    _armed.cache_clear()


def pass_failpoint(name: str) -> None:
    """Kill this process if the failpoint ``name`` is armed and its count is reached."""
    armed = _armed()
    if armed is None or armed[0] not in {name, "*"}:
        return
    _reached[armed[0]] = _reached.get(armed[0], 0) + 1
    if _reached[armed[0]] == armed[1]:
        if record := os.environ.get(RECORD):
            with open(record, "a", encoding="utf-8") as stream:
                stream.write(f"{name}\n")
        os.kill(os.getpid(), signal.SIGKILL)
