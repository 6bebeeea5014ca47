"""Deadlines of jobs, and the TTL of finished ones.

Both are computed as remaining time, so that the engine can requeue the job for that moment: no
other event may ever occur.
"""

from datetime import datetime, timedelta


def time_left(start: datetime | None, limit: timedelta | None, now: datetime) -> timedelta | None:
    """Return the time until ``limit`` after ``start``; zero or less once it has passed.

    None if there is no limit or no start.
    """
    if start is None or limit is None:
        return None
    return start + limit - now


def has_passed(remaining: timedelta | None) -> bool:
    return remaining is not None and remaining <= timedelta(0)
