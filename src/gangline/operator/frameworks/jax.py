"""JAXJob: the environment of ``jax.distributed.initialize``.

All processes are equal; the first one runs the coordinator. The job has succeeded when all have.
"""

from dataclasses import dataclass

from gangline.api.jobs import jax as api
from gangline.api.jobs.jax import JAXJob
from gangline.operator.frameworks import kubeflow
from gangline.operator.model.job import (
    JobKindInfo,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("JAXJob"),
    container=api.CONTAINER,
    port_name="jaxjob-port",
    port=6666,
)
WORKER = "Worker"


class JaxFramework(kubeflow.KubeflowFramework[JAXJob]):
    kind = KIND
    roles = api.ROLES
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)

    def rules(self, job: JAXJob) -> "JaxRules":
        return JaxRules()


def create_framework(_: OperatorSettings) -> JaxFramework:
    return JaxFramework()


@dataclass(frozen=True, slots=True)
class JaxRules(kubeflow.LeadingRoleRules):
    leaders = (WORKER,)

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return kubeflow.env_vars(
            [
                ("PYTHONUNBUFFERED", "1"),
                ("COORDINATOR_PORT", kubeflow.role_port(KIND, role)),
                ("COORDINATOR_ADDRESS", replica_name(job.name, WORKER, 0)),
                ("NUM_PROCESSES", job.size),
                ("PROCESS_ID", index),
            ]
        )

    def needs_all_ranks(self, job: NormalizedJob) -> bool:
        return True
