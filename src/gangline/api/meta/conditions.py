"""Status conditions, updated by the rules of Kubernetes.

``lastTransitionTime`` changes only with the status of a condition, not with its reason or message.
If nothing changes, the list stays equal, so that the caller can skip the write.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from gangline.api.meta.objects import Condition

TRUE = "True"
FALSE = "False"
MAX_MESSAGE_LENGTH = 32768
"""The API server refuses longer messages."""


class TypedCondition(Protocol):
    """The part of a condition that is read here: informers may decode less than the full type."""

    @property
    def type(self) -> str:
        """Type of the condition."""

    @property
    def status(self) -> str:
        """True, False or Unknown."""


C = TypeVar("C", bound=TypedCondition)


def find_condition(conditions: Sequence[C], type_: str) -> C | None:
    for condition in conditions:
        if condition.type == type_:
            return condition
    return None


def is_condition_true(conditions: Sequence[TypedCondition], type_: str) -> bool:
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status == TRUE


def set_condition(
    conditions: Sequence[Condition], condition: Condition, now: datetime
) -> list[Condition]:
    """Replace the condition of the same type, or append it.

    Returns a list equal to ``conditions`` if nothing has changed.
    """
    old = find_condition(conditions, condition.type)
    if old is not None and old.status == condition.status:
        since = old.last_transition_time
    else:
        since = condition.last_transition_time or now
    message = condition.message[:MAX_MESSAGE_LENGTH]
    new = msgspec.structs.replace(condition, message=message, last_transition_time=since)
    if old is None:
        return [*conditions, new]
    if _essentials(old) == _essentials(new):
        return list(conditions)
    return [new if current is old else current for current in conditions]


def remove_condition(conditions: Sequence[Condition], type_: str) -> list[Condition]:
    return [condition for condition in conditions if condition.type != type_]


def _essentials(condition: Condition) -> tuple[str, str, str, int | None]:
    return condition.status, condition.reason, condition.message, condition.observed_generation
