"""Conditions of objects, kept by Kubernetes' rules.

A condition's transition time is when its status last changed; another reason or message leaves it
alone. An unchanged condition leaves the whole list as it is, so that nothing needs to be written.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from gangline.api.meta import Condition

TRUE = "True"
FALSE = "False"
UNKNOWN = "Unknown"
LONGEST_MESSAGE = 32768


class TypedCondition(Protocol):
    """A condition: readers of many objects decode less than the full type."""

    @property
    def type(self) -> str:
        """What it is about."""

    @property
    def status(self) -> str:
        """True, False or Unknown."""


C = TypeVar("C", bound=TypedCondition)


def find_condition(conditions: Sequence[C], type_: str) -> C | None:
    """The condition of a type, if there is one."""
    for each in conditions:
        if each.type == type_:
            return each
    return None


def is_true(conditions: Sequence[TypedCondition], type_: str) -> bool:
    """Whether a condition is there and holds."""
    found = find_condition(conditions, type_)
    return found is not None and found.status == TRUE


def set_condition(
    conditions: Sequence[Condition], condition: Condition, now: datetime
) -> list[Condition]:
    """Put a condition in its place, or at the end when it is new.

    Returns a list equal to ``conditions`` when nothing has changed.
    """
    condition = _with_short_message(condition)
    old = find_condition(conditions, condition.type)
    if old is None:
        return [*conditions, _changed_at(condition, condition.last_transition_time or now)]
    if _same(old, condition):
        return list(conditions)
    since = old.last_transition_time
    if old.status != condition.status:
        since = condition.last_transition_time or now
    new = _changed_at(condition, since)
    return [new if each is old else each for each in conditions]


def remove_condition(conditions: Sequence[Condition], type_: str) -> list[Condition]:
    """The conditions without those of a type."""
    return [each for each in conditions if each.type != type_]


def _same(old: Condition, new: Condition) -> bool:
    return (old.status, old.reason, old.message, old.observed_generation) == (
        new.status,
        new.reason,
        new.message,
        new.observed_generation,
    )


def _changed_at(condition: Condition, since: datetime | None) -> Condition:
    return msgspec.structs.replace(condition, last_transition_time=since)


def _with_short_message(condition: Condition) -> Condition:
    if len(condition.message) <= LONGEST_MESSAGE:
        return condition
    return msgspec.structs.replace(condition, message=condition.message[:LONGEST_MESSAGE])
