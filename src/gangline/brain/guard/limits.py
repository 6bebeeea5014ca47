"""The value that may be set now: bounds of the user and of persons, and the largest step."""

import msgspec

from gangline.brain.advisers.advice import Advice, Choice, What
from gangline.brain.guard.policy import FIELDS, Permission
from gangline.brain.guard.state import GuardSettings, JobState, direction

_STEPPED = frozenset({What.WORKERS, What.MEMORY, What.PS_MEMORY})


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The value that may be set, its gain, and the name of the limit that changed it."""

    value: float | None
    choice: Choice | None
    gain: float | None
    gain_low: float | None
    limited_by: str = ""
    """``bound``, ``person``, ``step`` or ``written``; empty: the advised value."""


def limited_target(
    advice: Advice, job: JobState, permission: Permission, settings: GuardSettings
) -> Target:
    """Return the value nearest to the advised one that bounds and steps allow."""
    if advice.value is None or advice.was is None:
        return Target(value=advice.value, choice=None, gain=advice.gain, gain_low=advice.gain_low)
    low, high, by = _interval(advice, job, permission, settings)
    value = min(max(advice.value, low), high)
    limited_by = "" if value == advice.value else by[value]
    if advice.choices:
        return _chosen(advice, low, high, limited_by)
    return Target(
        value=value,
        choice=None,
        gain=advice.gain,
        gain_low=advice.gain_low,
        limited_by=limited_by,
    )


def _interval(
    advice: Advice, job: JobState, permission: Permission, settings: GuardSettings
) -> tuple[float, float, dict[float, str]]:
    """The least and the largest value, and the name of the limit behind each."""
    lows: list[tuple[float, str]] = [(float("-inf"), "")]
    highs: list[tuple[float, str]] = [(float("inf"), "")]
    was = advice.was or 0.0
    for bound in job.bounds:
        if (bound.what, bound.role) != (advice.what, advice.role):
            continue
        if bound.low is not None:
            lows.append((bound.low, "bound"))
        if bound.high is not None:
            highs.append((bound.high, "bound"))
        sized = advice.what in (What.MEMORY, What.CPU)
        if sized and bound.written is not None and FIELDS[advice.what] not in permission.named:
            lows.append((bound.written, "written"))
    for act in job.person_acts:
        if (act.what, act.role) != (advice.what, advice.role) or act.value is None:
            continue
        # A person who made it smaller set the largest value, one who made it larger the least.
        if direction(act.before, act.value) <= 0:
            highs.append((act.value, "person"))
        if direction(act.before, act.value) >= 0:
            lows.append((act.value, "person"))
    if advice.what in _STEPPED:
        highs.append((was * settings.factor, "step"))
        if advice.what is What.WORKERS:
            lows.append((was / settings.factor, "step"))
    low, low_by = max(lows, key=lambda pair: pair[0])
    high, high_by = min(highs, key=lambda pair: pair[0])
    # Where limits contradict each other, the upper one is the safe one.
    return min(low, high), high, {low: low_by, high: high_by}


def _chosen(advice: Advice, low: float, high: float, limited_by: str) -> Target:
    """The choice farthest from the present value on the way to the advised one."""
    was = advice.was or 0.0
    up = direction(advice.was, advice.value)
    possible = [
        choice
        for choice in advice.choices
        if low <= choice.value <= high and direction(was, choice.value) == up
    ]
    if not possible:
        return Target(value=was, choice=None, gain=None, gain_low=None, limited_by=limited_by)
    choice = max(possible, key=lambda choice: abs(choice.value - was))
    # Fewer workers are judged by goodput per worker, more by goodput.
    size = 1.0 if up >= 0 or advice.what is not What.WORKERS else choice.value / was
    return Target(
        value=choice.value,
        choice=choice,
        # A probe is made for what is possible, not for what is likely.
        gain=advice.gain if advice.probe else choice.goodput / size - 1,
        gain_low=choice.low / size - 1,
        limited_by="" if choice.value == advice.value else limited_by,
    )
