"""Plans deletions of a job's objects, and the forced deletion of pods that cannot terminate."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gangline.api.meta.objects import Object
from gangline.operator.model.plan import (
    EngineSettings,
    ObservedJob,
    OwnedObject,
    PlannedDeletion,
    TargetKind,
)
from gangline.operator.model.replicas import ObservedPod, ObservedService
from gangline.operator.policies import cleanup


def plan_deletions(
    observed: ObservedJob,
    pods: Iterable[ObservedPod],
    services: Iterable[ObservedService],
    now: datetime,
    settings: EngineSettings,
    *,
    with_group: bool = True,
    extras: Iterable[OwnedObject] = (),
) -> tuple[PlannedDeletion, ...]:
    """List the deletions, in an order that depends only on names.

    Args:
        observed: the observed state of the job.
        pods: the pods to delete.
        services: the services to delete.
        now: the time.
        settings: has the time after which a pod on a lost node is deleted by force.
        with_group: whether to delete the pod group too.
        extras: other owned objects to delete.
    """
    grace = settings.force_delete_after
    overdue = sorted(
        cleanup.overdue_pods(observed.pods, observed.lost_nodes, grace, now), key=_name
    )
    groups = [observed.pod_group] if with_group and observed.pod_group else []
    live = [pod for pod in pods if not pod.is_terminating]
    others: list[tuple[TargetKind, Object]] = [
        *((TargetKind.SERVICE, service) for service in sorted(services, key=_name)),
        *((TargetKind.POD_GROUP, group) for group in groups),
        *((extra.target, extra) for extra in sorted(extras, key=_kind_and_name)),
    ]
    return (
        *(PlannedDeletion(TargetKind.POD, pod.name, pod.uid) for pod in sorted(live, key=_name)),
        *(PlannedDeletion(TargetKind.POD, pod.name, pod.uid, force=True) for pod in overdue),
        *(
            PlannedDeletion(target, item.metadata.name, item.metadata.uid)
            for target, item in others
            if item.metadata.deletion_timestamp is None
        ),
    )


def time_to_force_delete(
    observed: ObservedJob, now: datetime, settings: EngineSettings
) -> timedelta | None:
    """Return the time until the next forced deletion of a stuck pod; None if there is none."""
    lost, grace = observed.lost_nodes, settings.force_delete_after
    times = (cleanup.time_to_force_delete_pod(pod, lost, grace, now) for pod in observed.pods)
    return earliest(*(left for left in times if left is not None and left > timedelta(0)))


def earliest(*times: timedelta | None) -> timedelta | None:
    """Return the shortest of the known times, at least zero; None if no time is known."""
    known = [time for time in times if time is not None]
    return max(min(known), timedelta(0)) if known else None


def _name(item: Object) -> str:
    return item.metadata.name


def _kind_and_name(item: OwnedObject) -> tuple[str, str]:
    return item.target, item.metadata.name
