"""The conditions of a job and the rules by which they replace each other.

Types and reasons are those of upstream. The list is ordered: True conditions stand behind False
ones, and the latest stands last, because the ``State`` column of upstream's tables (and every
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
"""The specification is invalid; the message lists every error."""
STALLED = "Stalled"
"""The API server refused an object that the job needs; the message names it and the reason."""

TRUE = "True"
FALSE = "False"

MESSAGE_LIMIT = 32_768
"""The API server refuses longer messages."""

_EXCLUDES = {RUNNING: RESTARTING, RESTARTING: RUNNING}


def find(conditions: Sequence[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def holds(conditions: Sequence[Condition], type_: str) -> bool:
    """Return whether a condition exists and is True."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == TRUE


def is_finished(conditions: Sequence[Condition]) -> bool:
    """Return whether the job has succeeded or failed. Both are final."""
    return holds(conditions, SUCCEEDED) or holds(conditions, FAILED)


def assert_true(
    conditions: Sequence[Condition], type_: str, reason: str, message: str, now: datetime
) -> list[Condition]:
    """Set a condition to True, as the latest.

    A condition that is already True with the same reason and message is unchanged. Running and
    Restarting replace each other; Succeeded and Failed set Running to False.
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
    """Set a condition to False if it is True; a missing condition is not added."""
    if not holds(conditions, type_):
        return list(conditions)
    over = _condition(type_, FALSE, reason, message[:MESSAGE_LIMIT], now, now)
    rest = drop(conditions, type_)
    settled = [condition for condition in rest if condition.status != TRUE]
    return [*settled, over, *(condition for condition in rest if condition.status == TRUE)]


def drop(conditions: Sequence[Condition], type_: str) -> list[Condition]:
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
