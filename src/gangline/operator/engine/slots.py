"""Assigns pods to replica slots and classifies failed replicas.

Pods of earlier generations get no slot. For kinds that track nodes, only the current pod of a
replica has its slot. A replaced pod that still runs keeps running until its successor is ready if
the kind asks for it (``is_awaited``); otherwise it is surplus and deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.model.job import (
    NormalizedJob,
    ReplicaRole,
    ToleratesFailures,
    implements,
)
from gangline.operator.model.plan import ObservedJob
from gangline.operator.model.replicas import ObservedPod, ReplicaGang, fill_slots, parse_indexes
from gangline.operator.policies import gang_restart, restart
from gangline.operator.policies.replica_tracker import tracker_of


@dataclass(frozen=True, slots=True)
class RoleFailures:
    """The failed replicas of one role."""

    role: ReplicaRole
    fatal: list[ObservedPod]
    replaced: list[ObservedPod]
    refused: Mapping[int, ObservedPod]
    """Pods that their nodes refused, by index: they are replaced and count as no failure."""


def assign_slots(observed: ObservedJob, status: JobStatus) -> ReplicaGang:
    """Assign the pods of the current generation to slots."""
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
    """Separate the failed replicas of a role that are replaced from those that end the job."""
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
