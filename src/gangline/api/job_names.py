"""Labels of a job's pods, and names that recur in objects of all kinds of jobs.

Commands that only list jobs import this module, and none of the types of the kinds.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

JOB_NAME_LABEL = "training.kubeflow.org/job-name"
ROLE_LABEL = "training.kubeflow.org/replica-type"
INDEX_LABEL = "training.kubeflow.org/replica-index"
OPERATOR_LABEL = "training.kubeflow.org/operator-name"

MANAGED_BY_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
"""``managedBy`` of a job that MultiKueue runs in another cluster."""
AWAITS_FORMER_PODS = "resumes when its former pods have ended"
"""Part of the message of Suspended, for a job that is resumed while its former pods still end."""
PREEMPTED, INTERRUPTED = "Preempted", "Interrupted"
"""Reasons of Running, after the kind, while pods of a job that ran are missing."""
LAST_VALID_SPEC_IN_FORCE = "the last valid specification stays in force"
"""Part of the message of InvalidSpec, for a job that has started."""
NOT_ALL_PODS_RAN = " Not all pods ran: "
"""In the message of Failed, between a deadline that has passed and what kept pods from running."""
RUNS_AGAIN = " runs again. It was restarted because "
"""In the message of Running, before the reason of the last restart."""
RELAUNCH_COUNT_LABEL = "elasticjob.dlrover/relaunch-count"
"""On a pod of an ElasticJob: how many pods of its rank it follows."""
ELASTIC_CONTAINER = "main"
"""Name of the container of an ElasticJob that trains."""
SCHEDULER_NAMES = ("gangline", "volcano", "default-scheduler")
"""``schedulerName`` of the pods that Gangline's scheduler or that of Kubernetes serves."""


class ConditionLike(Protocol):
    """The part of a job's condition that is read here."""

    @property
    def type(self) -> str:
        """Type of the condition."""

    @property
    def reason(self) -> str:
        """Reason of the condition."""


def unserved_message(scheduler: str, node: str, conditions: Iterable[ConditionLike]) -> str:
    """Return why a pod waits that no scheduler has looked at; empty if one has, or serves it."""
    if not scheduler or scheduler in SCHEDULER_NAMES:
        return ""
    if node or any(condition.type == "PodScheduled" for condition in conditions):
        return ""
    *names, last = SCHEDULER_NAMES
    served = f"{', '.join(names)} and {last}"
    return (
        f"no scheduler of the name {scheduler!r} has looked at it. Start one, or correct "
        f"spec.schedulerName: {served} are served here."
    )


def is_interrupted(condition: ConditionLike) -> bool:
    """Return whether a condition says that pods of a job that ran are missing."""
    return condition.type == "Running" and condition.reason.endswith((PREEMPTED, INTERRUPTED))


class NamedAndLabelled(Protocol):
    """The part of a pod's metadata that is read here."""

    @property
    def name(self) -> str:
        """Name of the pod."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the pod."""


class PodLike(Protocol):
    """A pod, of which the metadata is read."""

    @property
    def metadata(self) -> NamedAndLabelled:
        """Its metadata."""


def replica_name(pod: PodLike) -> str:
    """Return the role and index of a pod, such as ``worker-3``; its name if it has no role."""
    role = pod.metadata.labels.get(ROLE_LABEL, "")
    return f"{role}-{index_text(pod.metadata) or '0'}" if role else pod.metadata.name


_MPI_OPERATORS = ("mpijob-controller", "mpi-operator")


def index_text(meta: NamedAndLabelled) -> str:
    """Return the index of a pod in its role; empty if it has none.

    That of an MPIJob's worker is in its name: the label counts a launcher that trains as 0.
    """
    labels = meta.labels
    if labels.get(OPERATOR_LABEL) in _MPI_OPERATORS and labels.get(ROLE_LABEL) == "worker":
        return meta.name.rpartition("-")[2]
    return labels.get(INDEX_LABEL, "")
