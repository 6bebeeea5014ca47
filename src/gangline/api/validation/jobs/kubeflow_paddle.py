"""Errors and warnings for Kubeflow's PaddleJobs that no schema can express."""

from collections.abc import Iterator

from gangline.api.jobs.kubeflow_paddle import CONTAINER, ROLES, KubeflowPaddleJob
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings

_PATH = "spec.paddleReplicaSpecs"

OPERATOR_VARIABLES = frozenset(
    (
        "PADDLE_JOB_ID",
        "PADDLE_NNODES",
        "PADDLE_MASTER",
        "PADDLE_SERVER_NUM",
        "PADDLE_TRAINER_NUM",
    )
)
_RULES = replica_warnings.ReplicaRules(
    path=_PATH,
    roles=ROLES,
    default_restart_policy="OnFailure",
    operator_variables=OPERATOR_VARIABLES,
)


def validate(job: KubeflowPaddleJob, old: KubeflowPaddleJob | None = None) -> Iterator[FieldError]:
    spec = job.spec
    specs = spec.paddle_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, CONTAINER)
    yield from common_rules.job_size_errors(roles, _PATH)
    if spec.elastic_policy is not None:
        yield from common_rules.elastic_range_errors(
            (spec.elastic_policy.min_replicas, spec.elastic_policy.max_replicas),
            roles.get("Worker"),
            _PATH,
        )


def list_warnings(job: KubeflowPaddleJob) -> Iterator[FieldError]:
    yield from replica_warnings.common_replica_warnings(job.spec.paddle_replica_specs, job, _RULES)
