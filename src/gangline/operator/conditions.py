"""The conditions of a job and the rules by which they replace each other.

Types and reasons are upstream's. The list is ordered: what holds stands behind what no longer
holds, and what came last stands last, since the ``State`` column of upstream's tables (and every
script that copied it) shows the type of the last condition.
"""

from collections.abc import Sequence
from datetime import datetime

from gangline.api.meta import Condition

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
INVALID_SPEC = "InvalidSpec"
"""The specification cannot be carried out; every mistake in it is in the message."""
STALLED = "Stalled"
"""Something that the job needs could not be made; the message says what and why."""

TRUE = "True"
FALSE = "False"

MESSAGE_LIMIT = 32_768
"""The API server refuses longer messages."""

_EXCLUDES = {RUNNING: RESTARTING, RESTARTING: RUNNING}


def find(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """Find the condition of a type."""
    return next((condition for condition in conditions if condition.type == type_), None)


def holds(conditions: Sequence[Condition], type_: str) -> bool:
    """Say whether the condition of a type is there and True."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == TRUE


def is_finished(conditions: Sequence[Condition]) -> bool:
    """Say whether the job has come to its end, either way. That is for good."""
    return holds(conditions, SUCCEEDED) or holds(conditions, FAILED)


def assert_true(
    conditions: Sequence[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """Make a condition hold, as the newest.

    One that holds already for the same reason and with the same message is left alone. Running
    and Restarting replace each other; an end makes Running False.
    """
    message = message[:MESSAGE_LIMIT]
    old = find(conditions, type_)
    if old and (old.status, old.reason, old.message) == (TRUE, reason, message):
        return list(conditions)
    kept = drop(drop(conditions, type_), _EXCLUDES.get(type_, ""))
    if type_ in (SUCCEEDED, FAILED):
        kept = drop(kept, RESTARTING)
        if holds(kept, RUNNING):
            kept = assert_false(kept, RUNNING, reason, message, now)
    since = old.last_transition_time if old and old.status == TRUE else now
    return [*kept, _condition(type_, TRUE, reason, message, now, since)]


def assert_false(
    conditions: Sequence[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """Say that a condition no longer holds, if it did; one that never did is not mentioned."""
    if not holds(conditions, type_):
        return list(conditions)
    over = _condition(type_, FALSE, reason, message[:MESSAGE_LIMIT], now, now)
    rest = drop(conditions, type_)
    settled = [condition for condition in rest if condition.status != TRUE]
    return [*settled, over, *(condition for condition in rest if condition.status == TRUE)]


def drop(conditions: Sequence[Condition], type_: str) -> list[Condition]:
    """Take a condition off the list."""
    return [condition for condition in conditions if condition.type != type_]


def _condition(
    type_: str, status: str, reason: str, message: str, now: datetime, since: datetime | None
) -> Condition:
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=since,
    )
