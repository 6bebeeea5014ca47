"""Errors and warnings for JAXJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.checks import parts, replica_advice
from gangline.api.fielderror import FieldError
from gangline.api.jax import CONTAINER, ROLES, JAXJob

_PATH = "spec.jaxReplicaSpecs"

_RULES = replica_advice.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="Never",
    operator_variables=("COORDINATOR_PORT", "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"),
)


def validate_jax_job(job: JAXJob, old: JAXJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.jax_replica_specs
    roles, _ = parts.read_roles(specs, ROLES, _PATH)
    yield from parts.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    yield from parts.job_size_errors(roles, _PATH)
    if old is not None:
        yield from parts.immutable_field_errors(job.spec.run_policy, old.spec.run_policy)


def jax_job_warnings(job: JAXJob) -> Iterator[FieldError]:
    yield from replica_advice.common_replica_warnings(job.spec.jax_replica_specs, job, _RULES)
