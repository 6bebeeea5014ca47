"""Which pod belongs to which replica, and which failed ones are replaced.

Most kinds name a replica's pod by role and index, for ever: that is the default. A kind whose
replicas get another pod name with each replacement, or whose status changes the job after its
creation, extends ``ReplicaTracker`` with its rules.
"""

from datetime import datetime, timedelta

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.model.job import NormalizedJob, ReplicaRole
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ObservedPod, ReplicaGang
from gangline.operator.policies.restart import FailureAction, failure_action


class ReplicaTracker:
    """Tracks the replicas of a job; the default for kinds with fixed pod names."""

    __slots__ = ()

    def restore_from_status(self, job: NormalizedJob, status: JobStatus) -> NormalizedJob:
        """Return the job with the changes that its status stores."""
        return job

    def save_to_status(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> JobStatus:
        """Return the status with the values to store now, such as a replica's next name."""
        return status

    def pod_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return replica_name(job.name, role.name, index)

    def service_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return replica_name(job.name, role.name, index)

    def is_current(self, job: NormalizedJob, pod: ObservedPod) -> bool:
        """Return whether a pod is the current one of its replica."""
        return True

    def is_awaited(self, job: NormalizedJob, pod: ObservedPod, gang: ReplicaGang) -> bool:
        """Return whether a replaced pod keeps running until its successor runs."""
        return False

    def may_create(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        """Return whether a new pod may be created under the current name of a missing replica."""
        return True

    def excluded_indexes(self, job: NormalizedJob, role: ReplicaRole) -> frozenset[int]:
        """Return the indexes of a role that must have no pod."""
        return frozenset()

    def is_replaced(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: ObservedPod
    ) -> bool:
        """Return whether a failed pod is replaced."""
        return failure_action(role.restart, pod, job.kind.container) is FailureAction.REPLACE

    def is_fatal(self, job: NormalizedJob, role: ReplicaRole, pod: ObservedPod) -> bool:
        """Return whether a failed pod ends the job, also one that restarts together."""
        return False

    def counts_restart(self, job: NormalizedJob, role: ReplicaRole, pod: ObservedPod) -> bool:
        """Return whether a restart of all replicas after this failure counts towards the limit."""
        return True

    def pending_timeout(
        self, job: NormalizedJob, gang: ReplicaGang, now: datetime
    ) -> tuple[timedelta | None, str]:
        """Return how long the job may still wait for pods, and the failure message after that."""
        return None, ""


_DEFAULT = ReplicaTracker()


def tracker_of(job: NormalizedJob) -> ReplicaTracker:
    """Return the tracker of a job: its rules, if the kind has a tracker of its own."""
    return job.rules if isinstance(job.rules, ReplicaTracker) else _DEFAULT
