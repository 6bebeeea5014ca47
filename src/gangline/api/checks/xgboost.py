"""Errors and warnings for XGBoostJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.checks import parts, replica_advice
from gangline.api.fielderror import FieldError
from gangline.api.xgboost import CONTAINER, ROLES, XGBoostJob

_PATH = "spec.xgbReplicaSpecs"

_WAYS = replica_advice.Ways(
    path=_PATH,
    roles=ROLES,
    restart="Never",
    variables=(
        "MASTER_PORT",
        "MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "WORKER_PORT",
        "WORKER_ADDRS",
    ),
)


def check(job: XGBoostJob, old: XGBoostJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.xgb_replica_specs
    roles, _ = parts.read_roles(specs, ROLES, _PATH)
    yield from parts.kubeflow_job(job, specs, ROLES, _PATH, CONTAINER)
    if specs and "Master" not in roles:
        problem, remedy = "is missing", "give one: it runs the tracker that the workers report to"
        yield FieldError(f"{_PATH}.Master", None, problem, remedy)
    elif specs and (masters := parts.count(roles["Master"])) != 1:
        remedy = "give 1, and further pods as Worker"
        yield FieldError(f"{_PATH}.Master.replicas", masters, "is not 1", remedy)
    else:
        yield from parts.size(roles, _PATH)
    if old is not None:
        yield from parts.unchanged(job.spec.run_policy, old.spec.run_policy)


def advise(job: XGBoostJob) -> Iterator[FieldError]:
    yield from replica_advice.advise(job.spec.xgb_replica_specs, job, _WAYS)
