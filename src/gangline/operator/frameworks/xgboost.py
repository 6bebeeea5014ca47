"""XGBoostJob: a tracker on the Master, and workers with the addresses of all replicas.

The Master decides how the job ends. A failed pod is handled by its restart policy alone, as in
every kind. Upstream also ends the job where OnFailure or Always has just requested a restart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.api.jobs import xgboost as api
from gangline.api.jobs.xgboost import XGBoostJob
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

_DEFAULTS = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)


class XGBoostFramework:
    """The framework of XGBoostJobs."""

    kind = KIND

    def read(self, stored: RawJob) -> ParsedJob:
        return kubeflow.parse_job(stored, XGBoostJob, validate_job, self._normalize)

    def _normalize(self, job: XGBoostJob) -> NormalizedJob:
        return NormalizedJob(
            kind=KIND,
            meta=job.metadata,
            roles=kubeflow.parse_roles(KIND, job.spec.xgb_replica_specs, api.ROLES, _DEFAULTS),
            policy=kubeflow.parse_run_policy(job.spec.run_policy, _DEFAULTS),
            rules=XGBoostRules(),
        )


@dataclass(frozen=True, slots=True)
class XGBoostRules:
    """The rules of XGBoostJobs."""

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """List the variables of one replica, in upstream's order."""
        return kubeflow.env_vars(_replica_variables(job, role, index))

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return role.name == MASTER

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[MASTER].all_succeeded

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[MASTER].active > 0


def _replica_variables(
    job: NormalizedJob, role: ReplicaRole, index: int
) -> Iterator[tuple[str, object]]:
    master, workers = job.find_role(MASTER), job.find_role(WORKER)
    masters = master.replicas if master else 0
    yield "MASTER_PORT", kubeflow.role_port(KIND, master) if master else KIND.port
    yield "MASTER_ADDR", replica_name(job.name, MASTER, 0)
    yield "WORLD_SIZE", job.size
    yield "RANK", index if role.name == MASTER else index + masters
    yield "PYTHONUNBUFFERED", "1"
    if job.size > 1 and workers:
        yield "WORKER_PORT", kubeflow.role_port(KIND, workers)
        names = (replica_name(job.name, WORKER, each) for each in range(workers.replicas))
        yield "WORKER_ADDRS", ",".join(names)
