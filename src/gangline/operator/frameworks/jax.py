"""JAXJob: the environment of ``jax.distributed.initialize``.

All processes are equal; the first one runs the coordinator. The job has succeeded when all have.
"""

from dataclasses import dataclass

from gangline.api import jax as api
from gangline.api.jax import JAXJob
from gangline.api.validation import validate_job
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.base import Reading
from gangline.operator.job import Kind, Manifest, RestartPolicy, Role, TrainingJob
from gangline.operator.labels import replica_name
from gangline.operator.replicas import Gang
from gangline.operator.stored import StoredJob

KIND = Kind(
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

_DEFAULTS = kubeflow.Defaults(restart=RestartPolicy.NEVER)


class Jax:
    """The framework of JAXJobs."""

    kind = KIND

    def read(self, stored: StoredJob) -> Reading:
        return kubeflow.read(stored, JAXJob, validate_job, self._form)

    def _form(self, job: JAXJob) -> TrainingJob:
        return TrainingJob(
            kind=KIND,
            meta=job.metadata,
            roles=kubeflow.roles(KIND, job.spec.jax_replica_specs, api.ROLES, _DEFAULTS),
            policy=kubeflow.run_policy(job.spec.run_policy, _DEFAULTS),
            rules=JaxRules(),
        )


@dataclass(frozen=True, slots=True)
class JaxRules:
    """The rules of JAXJobs."""

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables of one process, in upstream's order."""
        return kubeflow.variables(
            [
                ("PYTHONUNBUFFERED", "1"),
                ("COORDINATOR_PORT", kubeflow.port(KIND, role)),
                ("COORDINATOR_ADDRESS", replica_name(job.name, WORKER, 0)),
                ("NUM_PROCESSES", job.size),
                ("PROCESS_ID", index),
            ]
        )

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        return index == 0

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        return gang[WORKER].all_succeeded

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        return gang[WORKER].active > 0
