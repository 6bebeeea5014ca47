"""Errors and warnings for MSJobs that no schema can express."""

from collections.abc import Iterator
from dataclasses import replace

from gangline.api.jobs.kubeflow import ReplicaSpec
from gangline.api.jobs.mindspore import (
    CONTAINER,
    PORT,
    PORT_NAME,
    PS,
    ROLES,
    SCHEDULER,
    WORKER,
    MSJob,
)
from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation import common_rules, replica_warnings
from gangline.api.validation.common_rules import RoleSpecs

_PATH = "spec.msReplicaSpecs"
_MIN_PORT = 1024

OPERATOR_VARIABLES = frozenset(
    (
        "MS_SCHED_HOST",
        "MS_SCHED_PORT",
        "MS_NODE_ID",
        "MS_SERVER_NUM",
        "MS_WORKER_NUM",
        "MS_ROLE",
    )
)
_RULES = replica_warnings.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    container=CONTAINER,
    operator_variables=OPERATOR_VARIABLES,
    operator_labels=("group-name", "job-name", "replica-type", "replica-index"),
    endless_roles=(SCHEDULER, PS),
)


def validate(job: MSJob, old: MSJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.ms_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    yield from common_rules.job_size_errors(roles, _PATH)
    yield from _scheduler_errors(roles)
    yield from _worker_errors(roles)
    for key, replica in specs.items():
        yield from _port_errors(replica, f"{child_path(_PATH, key)}.template")


def list_warnings(job: MSJob) -> Iterator[FieldError]:
    specs = job.spec.ms_replica_specs
    roles, _ = common_rules.read_roles(specs, ROLES, _PATH)
    alone = SCHEDULER not in roles or not common_rules.replica_count(roles[SCHEDULER])
    ways = replace(_RULES, operator_variables=()) if alone else _RULES
    yield from replica_warnings.common_replica_warnings(specs, job, ways)


def _scheduler_errors(roles: RoleSpecs) -> Iterator[FieldError]:
    """Exactly one scheduler lets the processes find each other; only a single worker needs none."""
    counts = {role: common_rules.replica_count(replica) for role, replica in roles.items()}
    schedulers = counts.get(SCHEDULER, 0)
    if schedulers > 1:
        remedy = "give 1: workers and servers register with one scheduler"
        yield FieldError(f"{_PATH}.{SCHEDULER}.replicas", schedulers, "is more than 1", remedy)
    if not schedulers and (counts.get(PS, 0) or counts.get(WORKER, 0) > 1):
        problem = "is missing: each pod would train alone"
        yield FieldError(f"{_PATH}.{SCHEDULER}", None, problem, "add a Scheduler with 1 replica")


def _worker_errors(roles: RoleSpecs) -> Iterator[FieldError]:
    """A job ends when its workers end, so it needs at least one."""
    if roles and WORKER not in roles:
        problem = "is missing: a job without workers never ends"
        yield FieldError(f"{_PATH}.{WORKER}", None, problem, "add a Worker")
        return
    counts = {role: common_rules.replica_count(replica) for role, replica in roles.items()}
    if sum(counts.values()) and not counts[WORKER]:
        remedy = "give at least 1; to suspend a job, set spec.runPolicy.suspend"
        problem = "leaves the job without a worker"
        yield FieldError(f"{_PATH}.{WORKER}.replicas", 0, problem, remedy)


def _port_errors(replica: ReplicaSpec, path: str) -> Iterator[FieldError]:
    for index, container in enumerate((replica.template.get("spec") or {}).get("containers") or ()):
        for place, port in enumerate(container.get("ports") or ()):
            number = port.get("containerPort")
            if port.get("name") == PORT_NAME and number and number < _MIN_PORT:
                where = f"{path}.spec.containers[{index}].ports[{place}].containerPort"
                problem = "is a port that MindSpore does not accept"
                remedy = f"give {_MIN_PORT} to 65535, or omit it for {PORT}"
                yield FieldError(where, number, problem, remedy)
