"""What a decision removes: all that is not on its way out yet, and by force what is stuck."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gangline.api.meta import Object
from gangline.operator.decision import Deletion, EngineSettings, Extra, Observed, Target
from gangline.operator.policies import stuck
from gangline.operator.replicas import Pod, Service


def removals(
    observed: Observed,
    pods: Iterable[Pod],
    services: Iterable[Service],
    now: datetime,
    settings: EngineSettings,
    *,
    with_group: bool = True,
    extras: Iterable[Extra] = (),
) -> tuple[Deletion, ...]:
    """List what to delete, in an order that depends on nothing but the names.

    Args:
        observed: what is seen of the job.
        pods: those that shall go.
        services: those that shall go.
        now: the time.
        settings: how long a pod on a lost node may overstay.
        with_group: whether the pod group goes too.
        extras: further objects that shall go.
    """
    patience = settings.force_delete_after
    overdue = sorted(stuck.overdue(observed.pods, observed.lost_nodes, patience, now), key=_name)
    groups = [observed.pod_group] if with_group and observed.pod_group else []
    unmarked = [pod for pod in pods if not pod.terminating]
    others: list[tuple[Target, Object]] = [
        *((Target.SERVICE, service) for service in sorted(services, key=_name)),
        *((Target.POD_GROUP, group) for group in groups),
        *((extra.target, extra) for extra in sorted(extras, key=_kind_and_name)),
    ]
    return (
        *(Deletion(Target.POD, pod.name, pod.uid) for pod in sorted(unmarked, key=_name)),
        *(Deletion(Target.POD, pod.name, pod.uid, force=True) for pod in overdue),
        *(
            Deletion(target, item.metadata.name, item.metadata.uid)
            for target, item in others
            if item.metadata.deletion_timestamp is None
        ),
    )


def force_left(observed: Observed, now: datetime, settings: EngineSettings) -> timedelta | None:
    """Return the time until the next stuck pod may be removed by force, if there is one."""
    lost, patience = observed.lost_nodes, settings.force_delete_after
    times = (stuck.time_left(pod, lost, patience, now) for pod in observed.pods)
    return soonest(*(left for left in times if left is not None and left > timedelta(0)))


def soonest(*times: timedelta | None) -> timedelta | None:
    """Return the shortest of the known times, and never less than none."""
    known = [time for time in times if time is not None]
    return max(min(known), timedelta(0)) if known else None


def _name(item: Object) -> str:
    return item.metadata.name


def _kind_and_name(item: Extra) -> tuple[str, str]:
    return item.target, item.metadata.name
