"""Errors and warnings for TFJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.checks import parts, replica_advice
from gangline.api.checks.parts import Roles
from gangline.api.fielderror import FieldError
from gangline.api.tensorflow import CONTAINER, ROLES, TFJob

_PATH = "spec.tfReplicaSpecs"
_LEADERS = ("Chief", "Master")
_DECIDING = (*_LEADERS, "Worker")

_WAYS = replica_advice.Ways(
    path=_PATH,
    roles=ROLES,
    restart="Never",
    container=CONTAINER,
    variables=("TF_CONFIG",),
    endless=("PS", "Evaluator"),
)


def check(job: TFJob, old: TFJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.tf_replica_specs
    roles, _ = parts.read_roles(specs, ROLES, _PATH)
    yield from parts.kubeflow_job(job, specs, ROLES, _PATH, CONTAINER)
    yield from parts.size(roles, _PATH)
    yield from _leaders(roles)
    yield from _decides(roles)
    if old is not None:
        yield from parts.unchanged(job.spec.run_policy, old.spec.run_policy)


def advise(job: TFJob) -> Iterator[FieldError]:
    yield from replica_advice.advise(job.spec.tf_replica_specs, job, _WAYS)
    roles, _ = parts.read_roles(job.spec.tf_replica_specs, ROLES, _PATH)
    if "Evaluator" in roles and (count := parts.count(roles["Evaluator"])) > 1:
        problem = "is more than the one evaluator that TensorFlow supports"
        yield FieldError(f"{_PATH}.Evaluator.replicas", count, problem, "give 1")
    leader = next((role for role in _LEADERS if role in roles), None)
    if leader and job.spec.enable_dynamic_worker:
        problem = f"hides all workers and servers from the {leader}"
        remedy = f"omit {leader}, or give spec.enableDynamicWorker: false"
        yield FieldError("spec.enableDynamicWorker", True, problem, remedy)


def _leaders(roles: Roles) -> Iterator[FieldError]:
    """TensorFlow has one chief; Master is its older name."""
    if all(leader in roles for leader in _LEADERS):
        problem = "is given together with Chief, which means the same"
        yield FieldError(f"{_PATH}.Master", None, problem, "remove one of the two")
    for leader in _LEADERS:
        if leader in roles and (count := parts.count(roles[leader])) > 1:
            remedy = "give 1, and further pods as Worker"
            yield FieldError(f"{_PATH}.{leader}.replicas", count, "is more than 1", remedy)


def _decides(roles: Roles) -> Iterator[FieldError]:
    """Parameter servers and evaluators never end by themselves, so another role has to."""
    counts = {role: parts.count(replica) for role, replica in roles.items()}
    if sum(counts.values()) and not any(counts.get(role) for role in _DECIDING):
        there = " and ".join(sorted(role for role, count in counts.items() if count))
        problem = f"has {there} only: such a job would never end"
        yield FieldError(_PATH, None, problem, "add a Worker, a Chief or a Master")
