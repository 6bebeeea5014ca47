"""XGBoostJob: a tracker on the Master, and workers with the addresses of all replicas.

The Master decides how the job ends. A failed pod is handled by its restart policy alone, as in
every kind. Upstream also ends the job where OnFailure or Always has just requested a restart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.api.jobs import xgboost as api
from gangline.api.jobs.xgboost import XGBoostJob
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
    table_entry("XGBoostJob"),
    container=api.CONTAINER,
    port_name="xgboostjob-port",
    port=9999,
)
MASTER, WORKER = "Master", "Worker"


class XGBoostFramework(kubeflow.KubeflowFramework[XGBoostJob]):
    kind = KIND
    roles = api.ROLES
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)

    def rules(self, job: XGBoostJob) -> "XGBoostRules":
        return XGBoostRules()


def create_framework(_: OperatorSettings) -> XGBoostFramework:
    return XGBoostFramework()


@dataclass(frozen=True, slots=True)
class XGBoostRules(kubeflow.LeadingRoleRules):
    leaders = (MASTER,)

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return kubeflow.env_vars(_replica_variables(job, role, index))


def _replica_variables(
    job: NormalizedJob, role: ReplicaRole, index: int
) -> Iterator[tuple[str, object]]:
    master, workers = job.find_role(MASTER), job.find_role(WORKER)
    yield "MASTER_PORT", kubeflow.role_port(KIND, master) if master else KIND.port
    yield "MASTER_ADDR", replica_name(job.name, MASTER, 0)
    yield "WORLD_SIZE", job.size
    yield "RANK", index if role.name == MASTER else index + job.count(MASTER)
    yield "PYTHONUNBUFFERED", "1"
    if job.size > 1 and workers:
        yield "WORKER_PORT", kubeflow.role_port(KIND, workers)
        names = (replica_name(job.name, WORKER, rank) for rank in range(workers.replicas))
        yield "WORKER_ADDRS", ",".join(names)
