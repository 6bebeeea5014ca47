"""JAXJob: the environment of ``jax.distributed.initialize``.

All processes are equal; the first one runs the coordinator. The job has succeeded when all have.
"""

from dataclasses import dataclass

from gangline.api.jobs import jax as api
from gangline.api.jobs.jax import JAXJob
from gangline.api.validation.validate import validate_job
from gangline.operator.frameworks import kubeflow
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import (
    JobKindInfo,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.raw_job import RawJob
from gangline.operator.model.replicas import ReplicaGang

KIND = JobKindInfo(
    kind="JAXJob",
    group="kubeflow.org",
    version="v1",
    plural="jaxjobs",
    framework="jax",
    controller="jaxjob-controller",
    container=api.CONTAINER,
    port_name="jaxjob-port",
    port=6666,
)
WORKER = "Worker"

_DEFAULTS = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)


class JaxFramework:
    """The framework of JAXJobs."""

    kind = KIND

    def read(self, stored: RawJob) -> ParsedJob:
        return kubeflow.parse_job(stored, JAXJob, validate_job, self._normalize)

    def _normalize(self, job: JAXJob) -> NormalizedJob:
        return NormalizedJob(
            kind=KIND,
            meta=job.metadata,
            roles=kubeflow.parse_roles(KIND, job.spec.jax_replica_specs, api.ROLES, _DEFAULTS),
            policy=kubeflow.parse_run_policy(job.spec.run_policy, _DEFAULTS),
            rules=JaxRules(),
        )


@dataclass(frozen=True, slots=True)
class JaxRules:
    """The rules of JAXJobs."""

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """List the variables of one process, in upstream's order."""
        return kubeflow.env_vars(
            [
                ("PYTHONUNBUFFERED", "1"),
                ("COORDINATOR_PORT", kubeflow.role_port(KIND, role)),
                ("COORDINATOR_ADDRESS", replica_name(job.name, WORKER, 0)),
                ("NUM_PROCESSES", job.size),
                ("PROCESS_ID", index),
            ]
        )

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return index == 0

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[WORKER].all_succeeded

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[WORKER].active > 0
