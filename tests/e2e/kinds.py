"""Jobs of every kind from common parameters, as users of that kind would write them in YAML."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.jobs import Manifest, template
from gangline.api.job_resources import KUBEFLOW_PADDLE_JOBS, XGBOOST_JOBS, find_job_kind
from gangline.api.jobs.mpi import MPIJob
from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    ELASTIC_JOBS,
    JAX_JOBS,
    MPI_JOBS,
    MS_JOBS,
    PADDLE_JOBS,
    PYTORCH_JOBS,
    TF_JOBS,
)


@dataclass(frozen=True)
class Part:
    """The replicas of one role and what they run."""

    command: str
    replicas: int = 1
    restart: str = "OnFailure"


@dataclass(frozen=True)
class JobKind:
    """How to write a job of one kind."""

    resource: Resource[Any]
    specs: str
    """The field with the roles; empty if they are next to the run policy."""
    container: str
    helpers: tuple[str, ...]
    """Roles that end with the others: parameter servers, schedulers."""
    ranks: str
    """The role whose replicas train."""
    leader: str = ""
    """The leading role of one replica, if the kind has one."""
    keep_pods: str = "None"
    remove_pods: str = "All"

    @property
    def name(self) -> str:
        """The kind, which differs from every other."""
        found = find_job_kind(self.resource.api_version, self.resource.kind)
        assert found is not None
        version = self.resource.version
        return (
            found.identity if version == found.resource.version else f"{found.identity}.{version}"
        )

    @property
    def is_mpi(self) -> bool:
        """Whether only its launcher, a single pod, trains."""
        return self.resource.kind == "MPIJob"

    def job(
        self,
        name: str,
        parts: Mapping[str, Part],
        *,
        shared: str = "",
        annotations: Mapping[str, str] | None = None,
        clean: str | None = None,
        **run_policy: Any,
    ) -> Manifest:
        """A job of these roles; keywords go into its run policy."""
        clean = self.keep_pods if clean is None else clean
        paddle = self.resource is PADDLE_JOBS
        policy = run_policy if paddle else {"cleanPodPolicy": clean, **run_policy}
        roles = {role: self._replica(part, shared) for role, part in parts.items()}
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {
                **({"cleanPodPolicy": clean} if paddle else {}),
                **({"runPolicy": policy} if policy else {}),
                **({self.specs: roles} if self.specs else roles),
            },
        }

    def usual(self, command: str, replicas: int = 2, restart: str = "OnFailure") -> dict[str, Part]:
        """Every role of the kind: helpers that run without end, ranks that run ``command``."""
        parts = {role: Part("sleep 3600", 1, "Never") for role in self.helpers}
        if self.leader:
            parts[self.leader] = Part(command, 1, restart)
        return parts | {self.ranks: Part(command, replicas, restart)}

    def _replica(self, part: Part, shared: str) -> Manifest:
        made = template(part.command, shared=shared)
        made["spec"]["containers"][0]["name"] = self.container
        if self.resource is PADDLE_JOBS:
            made["spec"]["restartPolicy"] = part.restart
            return {"replicas": part.replicas, "template": made}
        return {"replicas": part.replicas, "restartPolicy": part.restart, "template": made}


MPI_V2_JOBS: Resource[MPIJob] = Resource(MPIJob, "kubeflow.org", "v2beta1", "mpijobs", "MPIJob")

KINDS = (
    JobKind(PYTORCH_JOBS, "pytorchReplicaSpecs", "pytorch", (), "Worker", "Master"),
    JobKind(TF_JOBS, "tfReplicaSpecs", "tensorflow", ("PS",), "Worker", "Chief"),
    JobKind(MS_JOBS, "msReplicaSpecs", "mindspore", ("Scheduler", "PS"), "Worker"),
    JobKind(PADDLE_JOBS, "", "paddle", ("ps",), "worker", keep_pods="Never", remove_pods="Always"),
    JobKind(JAX_JOBS, "jaxReplicaSpecs", "jax", (), "Worker"),
    JobKind(XGBOOST_JOBS, "xgbReplicaSpecs", "xgboost", (), "Worker", "Master"),
    JobKind(KUBEFLOW_PADDLE_JOBS, "paddleReplicaSpecs", "paddle", (), "Worker"),
    JobKind(MPI_JOBS, "mpiReplicaSpecs", "mpi", ("Worker",), "Launcher"),
    JobKind(MPI_V2_JOBS, "mpiReplicaSpecs", "mpi", ("Worker",), "Launcher"),
)
ELASTIC = JobKind(ELASTIC_JOBS, "replicaSpecs", "main", ("dlrover-master",), "worker")
"""Its ranks are never restarted together by the operator, and their pods have other names."""
