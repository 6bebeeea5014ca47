"""The kinds of training jobs, as the SDK uses them: ``api.job_resources`` has the table."""

from gangline.api.job_resources import JOB_KINDS, find_job_kind
from gangline.api.jobs.kind import JobKind, JobObject, ReplicaSpecLike
from gangline.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "TrainingJob": "JobObject",
    },
)

__all__ = ["JOB_KINDS", "JobKind", "JobObject", "ReplicaSpecLike", "find_job_kind"]
