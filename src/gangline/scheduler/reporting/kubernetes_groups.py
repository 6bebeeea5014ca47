"""Conditions of PodGroups of Kubernetes (``scheduling.k8s.io``).

``PodGroupInitiallyScheduled`` is False with the reason of the scheduler until the group has its
nodes. Then it is True, and stays so. ``DisruptionTarget`` is True while a preemption ends all pods
of the group, until it has its nodes again.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from gangline.api.cluster.workload import INITIALLY_SCHEDULED
from gangline.api.failure import DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER
from gangline.api.meta.conditions import find_condition, set_condition
from gangline.api.meta.objects import Condition
from gangline.scheduler.queueing import messages
from gangline.scheduler.types import PendingReason, PodGroupInfo, PodInfo

SCHEDULED, UNSCHEDULABLE, SCHEDULER_ERROR = "Scheduled", "Unschedulable", "SchedulerError"


def kubernetes_group_conditions(
    group: PodGroupInfo,
    members: Collection[PodInfo],
    verdict: PendingReason | None,
    disruption: str,
) -> list[Condition]:
    """Return the conditions that the state of a group asks for.

    Args:
        verdict: why it is pending; None: it is not.
        disruption: why pods of it were evicted; empty: none were.
    """
    lasting = [pod for pod in members if not pod.is_terminating]
    placed = sum(pod.node is not None or pod.is_finished for pod in lasting)
    if placed >= max(1, group.min_member):
        message = "All pods that must start together have nodes."
        return [
            Condition(INITIALLY_SCHEDULED, "True", SCHEDULED, message),
            Condition(DISRUPTION_TARGET, "False", SCHEDULED, message),
        ]
    conditions = []
    if verdict is not None:
        failed = verdict.reason == messages.BINDING_REFUSED
        reason = SCHEDULER_ERROR if failed else UNSCHEDULABLE
        conditions.append(Condition(INITIALLY_SCHEDULED, "False", reason, verdict.message))
    if disruption and not placed:
        message = f"Evicted: {disruption}"
        conditions.append(Condition(DISRUPTION_TARGET, "True", PREEMPTION_BY_SCHEDULER, message))
    return conditions


def unwritten_conditions(
    current: Sequence[Condition], desired: Iterable[Condition], now: datetime
) -> list[Condition]:
    """Return the desired conditions that have to be written, with their times."""
    changed = []
    for condition in desired:
        before = find_condition(current, condition.type)
        if condition.type == INITIALLY_SCHEDULED:
            is_final = before is not None and before.status == "True"
        else:
            is_final = before is None and condition.status == "False"
        after = find_condition(set_condition(current, condition, now), condition.type)
        if after is not None and after != before and not is_final:
            changed.append(after)
    return changed
