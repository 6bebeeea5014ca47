"""A Job as the controller reads it."""

from datetime import datetime

import msgspec

from gangline.api.meta.objects import Condition, Object, Wire
from gangline.api.meta.resource import Resource
from gangline.local.controllers.replica_sets.plan import PodTemplate

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod with its completion index."""
BUILTIN_MANAGER = "kubernetes.io/job-controller"


class RawJobSpec(Wire):
    """The spec of a Job with its template unparsed."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    pod_replacement_policy: str = ""
    managed_by: str = ""
    template: PodTemplate = msgspec.field(default_factory=dict)


class UncountedPods(Wire):
    """Uids of ended pods whose finalizer is about to be removed, and which are then counted."""

    succeeded: list[str] = msgspec.field(default_factory=list)
    failed: list[str] = msgspec.field(default_factory=list)


class JobStatus(Wire):
    """The observed state of a Job."""

    conditions: list[Condition] = msgspec.field(default_factory=list)
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    uncounted_terminated_pods: UncountedPods = UncountedPods()


class RawJob(Object):
    """A Job."""

    spec: RawJobSpec = RawJobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def parallelism(self) -> int:
        return 1 if self.spec.parallelism is None else self.spec.parallelism

    @property
    def completions(self) -> int | None:
        """Desired successes; None: one success ends the Job, which creates no more pods."""
        spec = self.spec
        return 1 if spec.completions is None and spec.parallelism is None else spec.completions

    @property
    def backoff_limit(self) -> int:
        return 6 if self.spec.backoff_limit is None else self.spec.backoff_limit

    @property
    def is_managed_here(self) -> bool:
        return self.spec.managed_by in ("", BUILTIN_MANAGER)


RAW_JOBS: Resource[RawJob] = Resource(RawJob, "batch", "v1", "jobs", "Job")
