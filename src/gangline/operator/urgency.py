"""How long news of a job waits before it is stored: one write tells more, and others go first.

Pods of a gang start, and end, within moments of each other, and each would be a write of its own;
and while other jobs' pods wait to be made, a status costs these as much as a pod does.
"""

MINOR_EVERY_S = 1.0
"""How long minor news of a job waits for more of it, and how often it is stored."""

START_WAITS_S = 0.5
"""How long the news that a job runs waits for the rest of its pods."""

MINOR_WAITS_S = 30.0
"""How long minor news gives way to other jobs' pods while there is a crowd."""

CROWD_LOOKS_S = 10.0
"""How often a job is looked at in that time. Each look costs as much as a pod."""

LOOK_AGAIN_S = 1.0
"""How soon a job is looked at again for which something was made."""


def start_waits(waited_s: float) -> float | None:
    """How much longer the news that a job runs waits; None: it is stored now."""
    return START_WAITS_S - waited_s if waited_s < START_WAITS_S else None


def minor_waits(waited_s: float, since_stored_s: float, *, crowded: bool) -> float | None:
    """How long until minor news is looked at again; None: it is stored now.

    Args:
        waited_s: how long it has waited.
        since_stored_s: how long ago the job's status was last stored; infinite: never.
        crowded: whether writes wait for each other.
    """
    if crowded and waited_s < MINOR_WAITS_S:
        return min(CROWD_LOOKS_S, MINOR_WAITS_S - waited_s)
    recent_s = min(waited_s, since_stored_s)
    return MINOR_EVERY_S - recent_s if recent_s < MINOR_EVERY_S else None


def look_again(*, crowded: bool) -> float:
    """How soon to look at what was made for a job."""
    return CROWD_LOOKS_S if crowded else LOOK_AGAIN_S
