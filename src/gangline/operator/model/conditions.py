"""The conditions of a job and the rules by which they replace each other.

Types and reasons are those of upstream. The list is ordered: True conditions stand behind False
ones, and the latest stands last, because the ``State`` column of upstream's tables (and every
script that copied it) shows the type of the last condition.
"""

from collections.abc import Sequence
from datetime import datetime

from gangline.api.meta.conditions import (
    FALSE,
    MAX_MESSAGE_LENGTH,
    TRUE,
    find_condition,
    is_condition_true,
    remove_condition,
)
from gangline.api.meta.objects import Condition

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
INVALID_SPEC = "InvalidSpec"
"""The specification is invalid; the message lists every error."""
STALLED = "Stalled"
"""The API server refused an object that the job needs; the message names it and the reason."""

_EXCLUDES = {RUNNING: RESTARTING, RESTARTING: RUNNING}


def is_finished(conditions: Sequence[Condition]) -> bool:
    """Return whether the job has succeeded or failed. Both are final."""
    return is_condition_true(conditions, SUCCEEDED) or is_condition_true(conditions, FAILED)


def set_condition_true(
    conditions: Sequence[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """Set a condition to True, as the latest.

    A condition that is already True with the same reason and message is unchanged. Running and
    Restarting replace each other; Succeeded and Failed set Running to False.
    """
    message = message[:MAX_MESSAGE_LENGTH]
    old = find_condition(conditions, type_)
    if old and (old.status, old.reason, old.message) == (TRUE, reason, message):
        return list(conditions)
    remaining = remove_condition(remove_condition(conditions, type_), _EXCLUDES.get(type_, ""))
    if type_ in (SUCCEEDED, FAILED):
        remaining = remove_condition(remaining, RESTARTING)
        remaining = set_condition_false(remaining, RUNNING, reason, message, now)
    since = old.last_transition_time if old and old.status == TRUE else now
    return [*remaining, _condition(type_, TRUE, reason, message, now, since)]


def set_condition_false(
    conditions: Sequence[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """Set a condition to False, or give a False one this reason. A missing one is not added."""
    message = message[:MAX_MESSAGE_LENGTH]
    old = find_condition(conditions, type_)
    if old is None or (old.status, old.reason, old.message) == (FALSE, reason, message):
        return list(conditions)
    since = old.last_transition_time if old.status == FALSE else now
    over = _condition(type_, FALSE, reason, message, now, since)
    rest = remove_condition(conditions, type_)
    settled = [condition for condition in rest if condition.status != TRUE]
    return [*settled, over, *(condition for condition in rest if condition.status == TRUE)]


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
