"""The kinds of training jobs, and where each keeps its roles."""

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
from gangline.api.kubeflow import JobStatus, RunPolicy
from gangline.api.meta import ObjectMeta
from gangline.api.resource import Resource


class ReplicaSpecLike(Protocol):
    """The pods of one role, of whatever kind of job."""

    @property
    def replicas(self) -> int | None:
        """How many; 1 when not given."""

    @property
    def template(self) -> Mapping[str, Any]:
        """What they look like."""


class _Spec(Protocol):
    @property
    def run_policy(self) -> RunPolicy:
        """How the job runs and ends."""


class TrainingJob(Protocol):
    """A job of any kind, as it is stored."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""

    @property
    def spec(self) -> _Spec:
        """Its specification."""

    @property
    def status(self) -> JobStatus:
        """Where it is in its life."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of training job."""

    resource: Resource[Any]
    trainer: str
    """Its word in lists and flags."""
    roles: tuple[str, ...]
    """Its roles, the leading one first."""
    specs: str = ""
    """The attribute of the specification that holds the roles; empty: each is one of its own."""

    @property
    def words(self) -> frozenset[str]:
        """What people call it, in lower case: ``pytorchjob``, ``pytorch``, ``py``."""
        short = self.trainer.removesuffix("job")
        return frozenset((self.trainer, short, *_FURTHER_WORDS.get(self.trainer, ())))

    def replica_specs(self, job: TrainingJob) -> Mapping[str, ReplicaSpecLike]:
        """Return the job's roles by their right spelling, the leading one first."""
        if self.specs:
            written: Mapping[str, ReplicaSpecLike] = getattr(job.spec, self.specs)
        else:
            written = {role: getattr(job.spec, role) for role in self.roles}
        known = {name.lower(): spec for name, spec in written.items() if spec is not None}
        return {role: known[role.lower()] for role in self.roles if role.lower() in known}


_FURTHER_WORDS: Mapping[str, tuple[str, ...]] = {
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
