"""Errors and warnings for XGBoostJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.checks import parts, replica_advice
from gangline.api.fielderror import FieldError
from gangline.api.xgboost import CONTAINER, ROLES, XGBoostJob

_PATH = "spec.xgbReplicaSpecs"

_RULES = replica_advice.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    operator_variables=(
        "MASTER_PORT",
        "MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "WORKER_PORT",
        "WORKER_ADDRS",
    ),
)


def validate_xgboost_job(job: XGBoostJob, old: XGBoostJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.xgb_replica_specs
    roles, _ = parts.read_roles(specs, ROLES, _PATH)
    yield from parts.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    if specs and "Master" not in roles:
        problem, remedy = "is missing", "give one: it runs the tracker that the workers report to"
        yield FieldError(f"{_PATH}.Master", None, problem, remedy)
    elif specs and (masters := parts.replica_count(roles["Master"])) != 1:
        remedy = "give 1, and further pods as Worker"
        yield FieldError(f"{_PATH}.Master.replicas", masters, "is not 1", remedy)
    else:
        yield from parts.job_size_errors(roles, _PATH)
    if old is not None:
        yield from parts.immutable_field_errors(job.spec.run_policy, old.spec.run_policy)


def xgboost_job_warnings(job: XGBoostJob) -> Iterator[FieldError]:
    yield from replica_advice.common_replica_warnings(job.spec.xgb_replica_specs, job, _RULES)
