"""Assigns pods to replica slots and classifies failed replicas.

Pods of earlier generations get no slot. For kinds that track nodes, only the current pod of a
replica has its slot. A replaced pod that still runs keeps running until its successor is ready if
the kind asks for it (``is_awaited``); otherwise it is surplus and deleted.

Plans deletions of a job's objects, and the forced deletion of pods that cannot terminate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.objects import Object
from gangline.operator.model.job import (
    NormalizedJob,
    ReplicaRole,
    ToleratesFailures,
    implements,
)
from gangline.operator.model.plan import (
    EngineSettings,
    ObservedJob,
    OwnedObject,
    PlannedDeletion,
    TargetKind,
)
from gangline.operator.model.replicas import (
    ObservedPod,
    ObservedService,
    ReplicaGang,
    fill_slots,
    parse_indexes,
)
from gangline.operator.policies import cleanup, gang_restart, restart
from gangline.operator.policies.replica_tracker import tracker_of


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
    """List the deletions, in an order that depends only on names."""
    grace = settings.force_delete_after
    overdue = sorted(
        cleanup.overdue_pods(observed.pods, observed.lost_nodes, grace, now), key=_name
    )
    groups = [observed.pod_group] if with_group and observed.pod_group else []
    live = [pod for pod in pods if not pod.is_terminating]
    others: list[tuple[TargetKind, Object]] = [
        *((TargetKind.SERVICE, service) for service in sorted(services, key=_name)),
        *((TargetKind.POD_GROUP, group) for group in groups),
        *(
            (extra.target, extra)
            for extra in sorted(extras, key=lambda extra: (extra.target, extra.metadata.name))
        ),
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
    durations = [time for time in times if time is not None]
    return max(min(durations), timedelta(0)) if durations else None


def _name(item: Object) -> str:
    return item.metadata.name


def _target_and_name(item: OwnedObject) -> tuple[TargetKind, str]:
    return item.target, item.metadata.name


@dataclass(frozen=True, slots=True)
class RoleFailures:
    role: ReplicaRole
    fatal: list[ObservedPod]
    replaced: list[ObservedPod]
    refused: Mapping[int, ObservedPod]
    """Pods that their nodes refused, by index: they are replaced and count as no failure."""


def assign_slots(observed: ObservedJob, status: JobStatus) -> ReplicaGang:
    job, tracker = observed.job, tracker_of(observed.job)
    current, former = gang_restart.split_by_generation(
        observed.pods, observed.status.restarts.generation
    )
    completed = {
        role: parse_indexes(counted.completed_indexes)
        for role, counted in status.replica_statuses.items()
    }
    sizes = [(role.name, role.replicas) for role in job.roles]
    gang = fill_slots(
        sizes,
        current,
        completed,
        observed.services,
        former,
        {role.name: tracker.excluded_indexes(job, role) for role in job.roles},
        lambda pod: tracker.is_current(job, pod),
    )
    left = tuple(pod for pod in gang.surplus if not tracker.is_awaited(job, pod, gang))
    return replace(gang, surplus=left)


def classify_failures(job: NormalizedJob, role: ReplicaRole, gang: ReplicaGang) -> RoleFailures:
    fatal: list[ObservedPod] = []
    replaced: list[ObservedPod] = []
    refused: dict[int, ObservedPod] = {}
    for index, pod in enumerate(gang[role.name].pods):
        if pod is None or not pod.failed:
            continue
        if restart.is_refused(pod):
            refused[index] = pod
        elif _is_replaced(job, role, index, pod):
            replaced.append(pod)
        elif not (
            implements(job.rules, ToleratesFailures) and job.rules.tolerates_failures(job, role)
        ):
            fatal.append(pod)
    return RoleFailures(role, fatal, replaced, refused)


def _is_replaced(job: NormalizedJob, role: ReplicaRole, index: int, pod: ObservedPod) -> bool:
    if tracker_of(job).is_fatal(job, role, pod):
        return False
    if gang_restart.restarts_gang(job):
        action = gang_restart.gang_failure_action(role.restart, pod, job.kind.container)
        return action is restart.FailureAction.REPLACE
    return tracker_of(job).is_replaced(job, role, index, pod)
