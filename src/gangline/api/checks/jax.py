"""Errors and warnings for JAXJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.checks import parts, replica_advice
from gangline.api.fielderror import FieldError
from gangline.api.jax import CONTAINER, ROLES, JAXJob

_PATH = "spec.jaxReplicaSpecs"

_WAYS = replica_advice.Ways(
    path=_PATH,
    roles=ROLES,
    restart="Never",
    variables=("COORDINATOR_PORT", "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"),
)


def check(job: JAXJob, old: JAXJob | None = None) -> Iterator[FieldError]:
    specs = job.spec.jax_replica_specs
    roles, _ = parts.read_roles(specs, ROLES, _PATH)
    yield from parts.kubeflow_job(job, specs, ROLES, _PATH, CONTAINER)
    yield from parts.size(roles, _PATH)
    if old is not None:
        yield from parts.unchanged(job.spec.run_policy, old.spec.run_policy)


def advise(job: JAXJob) -> Iterator[FieldError]:
    yield from replica_advice.advise(job.spec.jax_replica_specs, job, _WAYS)
