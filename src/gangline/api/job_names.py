"""Labels of a job's pods, and names that recur in objects of all kinds of jobs.

Commands that only list jobs import this module, and none of the types of the kinds.
"""

from collections.abc import Mapping
from typing import Protocol

JOB_NAME_LABEL = "training.kubeflow.org/job-name"
ROLE_LABEL = "training.kubeflow.org/replica-type"
INDEX_LABEL = "training.kubeflow.org/replica-index"

MANAGED_BY_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
"""``managedBy`` of a job that MultiKueue runs in another cluster."""
AWAITS_FORMER_PODS = "resumes when its former pods have ended"
"""Part of the message of Suspended, for a job that is resumed while its former pods still end."""
RUNS_AGAIN = " runs again. It was restarted because "
"""In the message of Running, before the reason of the last restart."""
RELAUNCH_COUNT_LABEL = "elasticjob.dlrover/relaunch-count"
"""On a pod of an ElasticJob: how many pods of its rank it follows."""
ELASTIC_CONTAINER = "main"
"""Name of the container of an ElasticJob that trains."""


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
    labels = pod.metadata.labels
    role = labels.get(ROLE_LABEL, "")
    return f"{role}-{labels.get(INDEX_LABEL, '0')}" if role else pod.metadata.name
