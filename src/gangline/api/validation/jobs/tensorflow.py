"""Errors and warnings for TFJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.jobs.tensorflow import CONTAINER, ROLES, TFJob
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings
from gangline.api.validation.common_rules import RoleSpecs

_PATH = "spec.tfReplicaSpecs"
_LEADERS = ("Chief", "Master")
_DECIDING_ROLES = (*_LEADERS, "Worker")

OPERATOR_VARIABLES = frozenset(("TF_CONFIG",))
_RULES = replica_warnings.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    container=CONTAINER,
    operator_variables=OPERATOR_VARIABLES,
    endless_roles=("PS", "Evaluator"),
)


def validate(job: TFJob, old: TFJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.tf_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    yield from common_rules.job_size_errors(roles, _PATH)
    yield from _leader_errors(roles)
    yield from _deciding_role_errors(roles)


def list_warnings(job: TFJob) -> Iterator[FieldError]:
    yield from replica_warnings.common_replica_warnings(job.spec.tf_replica_specs, job, _RULES)
    roles, _ = common_rules.read_roles(job.spec.tf_replica_specs, ROLES, _PATH)
    if "Evaluator" in roles and (count := common_rules.replica_count(roles["Evaluator"])) > 1:
        problem = "is more than the one evaluator that TensorFlow supports"
        yield FieldError(f"{_PATH}.Evaluator.replicas", count, problem, "give 1")
    leader = next((role for role in _LEADERS if role in roles), None)
    if leader and job.spec.enable_dynamic_worker:
        problem = f"hides all workers and servers from the {leader}"
        remedy = f"omit {leader}, or give spec.enableDynamicWorker: false"
        yield FieldError("spec.enableDynamicWorker", True, problem, remedy)


def _leader_errors(roles: RoleSpecs) -> Iterator[FieldError]:
    """TensorFlow has one chief; Master is its older name."""
    if all(leader in roles for leader in _LEADERS):
        problem = "is given together with Chief, which means the same"
        yield FieldError(f"{_PATH}.Master", None, problem, "remove one of the two")
    for leader in _LEADERS:
        if leader in roles and (count := common_rules.replica_count(roles[leader])) > 1:
            remedy = "give 1, and further pods as Worker"
            yield FieldError(f"{_PATH}.{leader}.replicas", count, "is more than 1", remedy)


def _deciding_role_errors(roles: RoleSpecs) -> Iterator[FieldError]:
    """Parameter servers and evaluators never end by themselves, so another role has to."""
    counts = {role: common_rules.replica_count(replica) for role, replica in roles.items()}
    if sum(counts.values()) and not any(counts.get(role) for role in _DECIDING_ROLES):
        there = " and ".join(sorted(role for role, count in counts.items() if count))
        problem = f"has {there} only: such a job would never end"
        yield FieldError(_PATH, None, problem, "add a Worker, a Chief or a Master")
