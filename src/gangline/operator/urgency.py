"""Delays for status writes. Changes within the delay are merged into one write.

The pods of a gang start, and end, within moments of each other, and each would cause a write. While
pod creations of other jobs are queued, minor changes wait longer: a status write costs as much as
the creation of a pod.
"""

MINOR_EVERY_S = 1.0
"""Seconds between writes of minor changes of one job."""

START_WAITS_S = 0.5
"""Delay of the first Running condition, until the remaining pods of the gang run."""

MINOR_WAITS_S = 30.0
"""Longest delay of minor changes while pod creations are queued."""

CROWD_LOOKS_S = 10.0
"""Seconds between passes over a job in that time. Each pass costs as much as a pod creation."""

LOOK_AGAIN_S = 1.0
"""Seconds until the next pass over a job for which objects were created."""


def start_waits(waited_s: float) -> float | None:
    """Return the remaining delay of the first Running condition; None: store it now."""
    return START_WAITS_S - waited_s if waited_s < START_WAITS_S else None


def minor_waits(waited_s: float, since_stored_s: float, *, crowded: bool) -> float | None:
    """Return the time until a minor change is checked again; None: store it now.

    Args:
        waited_s: how long it has waited.
        since_stored_s: time since the job's last status write; infinite: never.
        crowded: whether writes wait for each other.
    """
    if crowded and waited_s < MINOR_WAITS_S:
        return min(CROWD_LOOKS_S, MINOR_WAITS_S - waited_s)
    recent_s = min(waited_s, since_stored_s)
    return MINOR_EVERY_S - recent_s if recent_s < MINOR_EVERY_S else None


def look_again(*, crowded: bool) -> float:
    """Return the time until the next pass over a job for which objects were created."""
    return CROWD_LOOKS_S if crowded else LOOK_AGAIN_S
