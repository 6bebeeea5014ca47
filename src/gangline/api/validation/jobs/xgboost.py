"""Errors and warnings for XGBoostJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.jobs.xgboost import CONTAINER, ROLES, XGBoostJob
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings

_PATH = "spec.xgbReplicaSpecs"

OPERATOR_VARIABLES = frozenset(
    (
        "MASTER_PORT",
        "MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "WORKER_PORT",
        "WORKER_ADDRS",
    )
)
_RULES = replica_warnings.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    operator_variables=OPERATOR_VARIABLES,
)


def validate(job: XGBoostJob, old: XGBoostJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.xgb_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    if specs and "Master" not in roles:
        problem, remedy = "is missing", "give one: it runs the tracker that the workers report to"
        yield FieldError(f"{_PATH}.Master", None, problem, remedy)
    elif specs and (masters := common_rules.replica_count(roles["Master"])) != 1:
        remedy = "give 1, and further pods as Worker"
        yield FieldError(f"{_PATH}.Master.replicas", masters, "is not 1", remedy)
    else:
        yield from common_rules.job_size_errors(roles, _PATH)


def list_warnings(job: XGBoostJob) -> Iterator[FieldError]:
    yield from replica_warnings.common_replica_warnings(job.spec.xgb_replica_specs, job, _RULES)
