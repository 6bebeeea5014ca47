"""Errors and warnings for JAXJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.jobs.jax import CONTAINER, ROLES, JAXJob
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings

_PATH = "spec.jaxReplicaSpecs"

OPERATOR_VARIABLES = frozenset(
    (
        "COORDINATOR_PORT",
        "COORDINATOR_ADDRESS",
        "NUM_PROCESSES",
        "PROCESS_ID",
    )
)
_RULES = replica_warnings.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    operator_variables=OPERATOR_VARIABLES,
)


def validate(job: JAXJob, old: JAXJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.jax_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    yield from common_rules.job_size_errors(roles, _PATH)


def list_warnings(job: JAXJob) -> Iterator[FieldError]:
    yield from replica_warnings.common_replica_warnings(job.spec.jax_replica_specs, job, _RULES)
