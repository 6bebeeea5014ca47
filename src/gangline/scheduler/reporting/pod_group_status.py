"""The status of a PodGroup: phase, counts and conditions.

Phases are Volcano's: Pending (not admitted), Inqueue (admitted; controllers create its pods now),
Running (its minimum has nodes), Unknown (members run, but the gang is incomplete and cannot be
completed now), Completed (all pods have ended).
"""

from collections.abc import Collection
from datetime import datetime

import msgspec

from gangline.api.volcano.scheduling import PodGroupCondition, PodGroupStatus
from gangline.scheduler.queueing import messages
from gangline.scheduler.types.types import PendingReason, PodGroupInfo, PodInfo

PENDING, INQUEUE, RUNNING, UNKNOWN, COMPLETED = (
    "Pending",
    "Inqueue",
    "Running",
    "Unknown",
    "Completed",
)
UNSCHEDULABLE, SCHEDULED = "Unschedulable", "Scheduled"
START_EXPECTED = "StartExpected"
"""Condition with the place of a pending gang in the line of its queue, and its expected start."""
FORECAST = "Forecast"
"""Reason of that condition."""
_NOT_ADMITTED_REASONS = frozenset(
    {messages.NO_SUCH_QUEUE, messages.QUEUE_CLOSED, messages.QUOTA_EXCEEDED}
)


def pod_group_status(
    current: PodGroupStatus,
    group: PodGroupInfo,
    members: Collection[PodInfo],
    verdict: PendingReason | None,
    now: datetime,
    expected_start: str = "",
) -> PodGroupStatus:
    """Return the desired status; equal to ``current`` if nothing has to be written.

    Args:
        current: the known status.
        group: the gang.
        members: its pods.
        verdict: why it is pending; None: it is not.
        now: the time of changed conditions.
        expected_start: when it is expected to start; empty: unknown.
    """
    conditions = _conditions(current.conditions, group, members, verdict)
    if verdict is not None and expected_start:
        conditions.append(
            PodGroupCondition(START_EXPECTED, "True", "", None, FORECAST, expected_start)
        )
    return PodGroupStatus(
        phase=phase_of(current.phase, group, members, verdict),
        conditions=[_dated(each, current.conditions, now) for each in conditions],
        running=sum(pod.phase == "Running" for pod in members),
        succeeded=sum(pod.phase == "Succeeded" for pod in members),
        failed=sum(pod.phase == "Failed" for pod in members),
    )


def phase_of(
    current: str, group: PodGroupInfo, members: Collection[PodInfo], verdict: PendingReason | None
) -> str:
    placed = [pod for pod in members if pod.node is not None or pod.is_finished]
    if verdict is not None and any(pod.phase == "Running" for pod in placed):
        return UNKNOWN
    if len(placed) >= max(1, group.min_member):
        # A member that is pending, or is being created, keeps the group from being Completed.
        return COMPLETED if all(pod.is_finished for pod in members) else RUNNING
    if verdict is not None and verdict.reason == messages.QUEUE_LIMIT:
        # The limit is checked again and again: a gang that was admitted earlier may be over it now.
        return PENDING
    if verdict is not None and verdict.reason in _NOT_ADMITTED_REASONS:
        return current if current == INQUEUE else PENDING
    return INQUEUE


def _conditions(
    current: list[PodGroupCondition],
    group: PodGroupInfo,
    members: Collection[PodInfo],
    verdict: PendingReason | None,
) -> list[PodGroupCondition]:
    if verdict is not None:
        desired = [
            PodGroupCondition(UNSCHEDULABLE, "True", "", None, verdict.reason, verdict.message),
            PodGroupCondition(SCHEDULED, "False", "", None, verdict.reason, "The gang is pending."),
        ]
    elif _is_placed(group, members):
        message = "All pods that must start together have nodes."
        desired = [
            PodGroupCondition(UNSCHEDULABLE, "False", "", None, SCHEDULED, message),
            PodGroupCondition(SCHEDULED, "True", "", None, SCHEDULED, message),
        ]
    else:
        # It is not pending and not placed: its pods are still to be created, or were deleted.
        # Earlier conditions about its placement no longer hold.
        message = "The pods that must start together do not exist."
        desired = [
            PodGroupCondition(known.type, "False", "", None, messages.NOT_ENOUGH_PODS, message)
            for known in current
            if known.type != START_EXPECTED
        ]
    return desired


def _is_placed(group: PodGroupInfo, members: Collection[PodInfo]) -> bool:
    placed = sum(pod.node is not None or pod.is_finished for pod in members)
    return placed >= max(1, group.min_member)


def _dated(
    desired: PodGroupCondition, current: list[PodGroupCondition], now: datetime
) -> PodGroupCondition:
    """Keep the transition time of a condition unless its status has changed."""
    for known in current:
        if known.type == desired.type and known.status == desired.status:
            return msgspec.structs.replace(
                desired,
                last_transition_time=known.last_transition_time,
                transition_id=known.transition_id,
            )
    stamp = format(int(now.timestamp() * 1_000_000), "x")
    return msgspec.structs.replace(desired, last_transition_time=now, transition_id=stamp)
