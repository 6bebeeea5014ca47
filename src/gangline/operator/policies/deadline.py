"""How long a job may run, and how long it is kept once it has finished.

Both are answered as time left, so that the engine can ask to be called again at that moment:
nothing else may ever happen in the job.
"""

from datetime import datetime, timedelta


def left(start: datetime | None, limit: timedelta | None, now: datetime) -> timedelta | None:
    """Return the time until ``limit`` after ``start``; zero or less once it is over.

    None if there is no limit, or nothing to count from.
    """
    if start is None or limit is None:
        return None
    return start + limit - now


def is_over(remaining: timedelta | None) -> bool:
    """Say whether a limit exists and has passed."""
    return remaining is not None and remaining <= timedelta(0)
