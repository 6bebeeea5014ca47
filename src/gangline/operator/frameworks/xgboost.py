"""XGBoostJob: a tracker on the Master, and workers with the addresses of all replicas.

The Master decides how the job ends. A failed pod is handled by its restart policy alone, as in
every kind. Upstream also ends the job where OnFailure or Always has just requested a restart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.api import xgboost as api
from gangline.api.validation import validate_job
from gangline.api.xgboost import XGBoostJob
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.base import Reading
from gangline.operator.job import Kind, Manifest, RestartPolicy, Role, TrainingJob
from gangline.operator.labels import replica_name
from gangline.operator.replicas import Gang
from gangline.operator.stored import StoredJob

KIND = Kind(
    kind="XGBoostJob",
    group="kubeflow.org",
    version="v1",
    plural="xgboostjobs",
    framework="xgboost",
    controller="xgboostjob-controller",
    container=api.CONTAINER,
    port_name="xgboostjob-port",
    port=9999,
)
MASTER, WORKER = "Master", "Worker"

_DEFAULTS = kubeflow.Defaults(restart=RestartPolicy.NEVER)


class XGBoost:
    """The framework of XGBoostJobs."""

    kind = KIND

    def read(self, stored: StoredJob) -> Reading:
        return kubeflow.read(stored, XGBoostJob, validate_job, self._form)

    def _form(self, job: XGBoostJob) -> TrainingJob:
        return TrainingJob(
            kind=KIND,
            meta=job.metadata,
            roles=kubeflow.roles(KIND, job.spec.xgb_replica_specs, api.ROLES, _DEFAULTS),
            policy=kubeflow.run_policy(job.spec.run_policy, _DEFAULTS),
            rules=XGBoostRules(),
        )


@dataclass(frozen=True, slots=True)
class XGBoostRules:
    """The rules of XGBoostJobs."""

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables of one replica, in upstream's order."""
        return kubeflow.variables(_told(job, role, index))

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        return role.name == MASTER

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        return gang[MASTER].all_succeeded

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        return gang[MASTER].active > 0


def _told(job: TrainingJob, role: Role, index: int) -> Iterator[tuple[str, object]]:
    master, workers = job.role(MASTER), job.role(WORKER)
    masters = master.replicas if master else 0
    yield "MASTER_PORT", kubeflow.port(KIND, master) if master else KIND.port
    yield "MASTER_ADDR", replica_name(job.name, MASTER, 0)
    yield "WORLD_SIZE", job.size
    yield "RANK", index if role.name == MASTER else index + masters
    yield "PYTHONUNBUFFERED", "1"
    if job.size > 1 and workers:
        yield "WORKER_PORT", kubeflow.port(KIND, workers)
        names = (replica_name(job.name, WORKER, each) for each in range(workers.replicas))
        yield "WORKER_ADDRS", ",".join(names)
