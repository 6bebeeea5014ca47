"""Assigns pods to replica slots and classifies failed replicas.

Pods of earlier generations get no slot. For kinds that track nodes, only the current pod of a
replica has its slot. A replaced pod that still runs keeps running until its successor is ready if
the kind asks for it (``is_awaited``); otherwise it is surplus and deleted.
"""

from dataclasses import dataclass, replace

from gangline.api.kubeflow import JobStatus
from gangline.operator.decision import Observed
from gangline.operator.indexes import read
from gangline.operator.job import KeepsNodes, OutlivesFailures, Role, TrainingJob, offers
from gangline.operator.policies import restart, together
from gangline.operator.replicas import Gang, Pod, arrange


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed replicas of one role."""

    role: Role
    fatal: list[Pod]
    replaced: list[Pod]


def arranged(observed: Observed, status: JobStatus) -> Gang:
    """Assign the pods of the current generation to slots."""
    job, rules = observed.job, observed.job.rules
    current, former = together.parted(observed.pods, observed.status.restarts.generation)
    completed = {
        role: read(counted.completed_indexes) for role, counted in status.replica_statuses.items()
    }
    sizes = [(role.name, role.replicas) for role in job.roles]
    if not offers(rules, KeepsNodes):
        return arrange(sizes, current, completed, observed.services, former)
    absent = {role.name: rules.absent(job, role) for role in job.roles}
    gang = arrange(
        sizes,
        current,
        completed,
        observed.services,
        former,
        absent,
        lambda pod: rules.is_present(job, pod),
    )
    left = tuple(pod for pod in gang.surplus if not rules.is_awaited(job, pod, gang))
    return replace(gang, surplus=left)


def judged(job: TrainingJob, role: Role, seen: Gang) -> Failures:
    """Separate the failed replicas of a role that are replaced from those that end the job."""
    fatal: list[Pod] = []
    replaced: list[Pod] = []
    for index, pod in enumerate(seen[role.name].pods):
        if pod is None or not pod.failed:
            continue
        if _is_replaced(job, role, index, pod):
            replaced.append(pod)
        elif not (offers(job.rules, OutlivesFailures) and job.rules.tolerates(job, role)):
            fatal.append(pod)
    return Failures(role, fatal, replaced)


def _is_replaced(job: TrainingJob, role: Role, index: int, pod: Pod) -> bool:
    container = job.kind.container
    if together.restarts(job):
        return together.judged(role.restart, pod, container) is restart.Judgement.REPLACE
    if offers(job.rules, KeepsNodes):
        return job.rules.is_replaced(job, role, index, pod)
    return restart.judge(role.restart, pod, container) is restart.Judgement.REPLACE
