"""The kinds of training jobs, and where each stores its roles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gangline.api.job_resources import (
    ELASTIC_JOBS,
    JAX_JOBS,
    MPI_JOBS,
    MS_JOBS,
    PADDLE_JOBS,
    PYTORCH_JOBS,
    TF_JOBS,
    XGBOOST_JOBS,
)
from gangline.api.jobs.kubeflow import JobStatus, RunPolicy
from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.resource import Resource


class ReplicaSpecLike(Protocol):
    """Replica spec of one role, of any kind of job."""

    @property
    def replicas(self) -> int | None:
        """Number of pods; None means 1."""

    @property
    def template(self) -> Mapping[str, Any]:
        """Pod template."""


class _Spec(Protocol):
    @property
    def run_policy(self) -> RunPolicy: ...


class JobObject(Protocol):
    """A stored job of any kind."""

    @property
    def metadata(self) -> ObjectMeta:
        """Metadata of the job."""

    @property
    def spec(self) -> _Spec:
        """Specification of the job."""

    @property
    def status(self) -> JobStatus:
        """Status of the job."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of training job."""

    resource: Resource[Any]
    trainer: str
    """Its name in lists and flags."""
    roles: tuple[str, ...]
    """Its roles, the leading role first."""
    replica_specs_field: str = ""
    """Attribute of the spec with the roles; empty if each role has an attribute of its own."""

    @property
    def aliases(self) -> frozenset[str]:
        """Names and aliases in lower case: ``pytorchjob``, ``pytorch``, ``py``."""
        short = self.trainer.removesuffix("job")
        return frozenset((self.trainer, short, *_ALIASES.get(self.trainer, ())))

    def replica_specs(self, job: JobObject) -> Mapping[str, ReplicaSpecLike]:
        """Return replica specs by the canonical name of the role, the leading role first."""
        if self.replica_specs_field:
            written: Mapping[str, ReplicaSpecLike] = getattr(job.spec, self.replica_specs_field)
        else:
            written = {role: getattr(job.spec, role) for role in self.roles}
        known = {name.lower(): spec for name, spec in written.items() if spec is not None}
        return {role: known[role.lower()] for role in self.roles if role.lower() in known}


_ALIASES: Mapping[str, tuple[str, ...]] = {
    "pytorchjob": ("py",),
    "tfjob": ("tensorflow",),
    "mpijob": ("mj", "horovod", "horovodjob", "hj"),
    "msjob": ("mindspore", "mindsporejob"),
    "elasticjob": ("elastictraining", "et", "etjob"),
}

JOB_KINDS = (
    JobKind(PYTORCH_JOBS, "pytorchjob", ("Master", "Worker"), "pytorch_replica_specs"),
    JobKind(TF_JOBS, "tfjob", ("Chief", "Master", "Worker", "PS", "Evaluator"), "tf_replica_specs"),
    JobKind(MS_JOBS, "msjob", ("Worker", "Scheduler", "PS"), "ms_replica_specs"),
    JobKind(PADDLE_JOBS, "paddlejob", ("worker", "ps", "heter")),
    JobKind(
        ELASTIC_JOBS,
        "elasticjob",
        ("chief", "worker", "ps", "evaluator", "dlrover-master"),
        "replica_specs",
    ),
    JobKind(JAX_JOBS, "jaxjob", ("Worker",), "jax_replica_specs"),
    JobKind(MPI_JOBS, "mpijob", ("Launcher", "Worker"), "mpi_replica_specs"),
    JobKind(XGBOOST_JOBS, "xgboostjob", ("Master", "Worker"), "xgb_replica_specs"),
)
