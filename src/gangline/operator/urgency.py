"""Delays for status writes. Changes within the delay are merged into one write.

The pods of a gang start, and end, within moments of each other, and each would cause a write. While
pod creations of other jobs are queued, minor changes wait longer: a status write costs as much as
the creation of a pod.
"""

MINOR_STATUS_INTERVAL_S = 1.0
"""Seconds between writes of minor changes of one job."""

RUNNING_STATUS_DELAY_S = 0.5
"""Delay of the first Running condition, until the remaining pods of the gang run."""

MINOR_STATUS_MAX_DELAY_S = 30.0
"""Longest delay of minor changes while pod creations are queued."""

SATURATED_REQUEUE_S = 10.0
"""Seconds between passes over a job in that time. Each pass costs as much as a pod creation."""

CREATED_REQUEUE_S = 1.0
"""Seconds until the next pass over a job for which objects were created."""


def running_status_delay(waited_s: float) -> float | None:
    """Return the remaining delay of the first Running condition; None: store it now."""
    return RUNNING_STATUS_DELAY_S - waited_s if waited_s < RUNNING_STATUS_DELAY_S else None


def minor_status_delay(
    waited_s: float, since_stored_s: float, *, is_saturated: bool
) -> float | None:
    """Return the time until a minor change is checked again; None: store it now.

    Args:
        waited_s: how long it has waited.
        since_stored_s: time since the job's last status write; infinite: never.
        crowded: whether writes wait for each other.
    """
    if is_saturated and waited_s < MINOR_STATUS_MAX_DELAY_S:
        return min(SATURATED_REQUEUE_S, MINOR_STATUS_MAX_DELAY_S - waited_s)
    recent_s = min(waited_s, since_stored_s)
    return MINOR_STATUS_INTERVAL_S - recent_s if recent_s < MINOR_STATUS_INTERVAL_S else None


def requeue_delay(*, is_saturated: bool) -> float:
    """Return the time until the next pass over a job for which objects were created."""
    return SATURATED_REQUEUE_S if is_saturated else CREATED_REQUEUE_S
