"""TFJob: each replica gets its own role and the addresses of the others in ``TF_CONFIG``.

The variable is identical to upstream's: compact JSON, keys in its order, roles in lower case,
Evaluators listed like the others. A job of one replica has none and trains alone.

The end of a job is decided by its Chief or Master, else by worker 0 or all workers, according to
the success policy. Parameter servers and evaluators never decide. A job of nothing else is refused,
because it would never end; upstream runs it for ever.

With ``enableDynamicWorker`` workers may be added, removed and fail. Each gets only its own address
and those of the parameter servers, so its configuration never becomes outdated. A worker that
failed permanently (restart policy Never) is tolerated. When no worker is left and success has
become impossible, the job fails, where upstream's hangs.
"""

import json
from dataclasses import dataclass

from gangline.api.jobs import tensorflow as api
from gangline.api.jobs.tensorflow import ALL_WORKERS, TFJob, TFJobSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.model.job import (
    JobKindInfo,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("TFJob"),
    container=api.CONTAINER,
    port_name="tfjob-port",
    port=2222,
    env_in_all_containers=False,
)
CHIEF, MASTER, PS, WORKER = "Chief", "Master", "PS", "Worker"


class TensorFlowFramework(kubeflow.KubeflowFramework[TFJob]):
    kind = KIND
    roles = api.ROLES
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)

    def __init__(self, cluster_domain: str = "") -> None:
        """Set the domain that is appended to the replicas' addresses, such as ``cluster.local``.

        Needed only where the DNS search path of pods lacks the cluster's domain.
        """
        self._domain = cluster_domain

    def rules(self, job: TFJob) -> "TensorFlowRules":
        return TensorFlowRules(job.spec, self._domain)


def create_framework(settings: OperatorSettings) -> TensorFlowFramework:
    return TensorFlowFramework(settings.cluster_domain)


@dataclass(frozen=True, slots=True)
class TensorFlowRules(kubeflow.LeadingRoleRules):
    """The Chief or Master leads, or without either the workers."""

    leaders = (CHIEF, MASTER, WORKER)
    spec: TFJobSpec
    cluster_domain: str = ""

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """Describe the cluster and the replica's own task; empty for a single replica."""
        if job.size == 1:
            return []
        config: Manifest = {"cluster": {}, "task": {"type": role.label, "index": index}}
        if self.spec.enable_dynamic_worker:
            config["cluster"] = self._sparse_cluster(job, role, index)
        else:
            roles = {peer.label: peer for peer in job.roles if peer.replicas}
            config["cluster"] = {
                label: self._addresses(job, peer) for label, peer in sorted(roles.items())
            }
            config["environment"] = "cloud"
        return kubeflow.env_vars([("TF_CONFIG", json.dumps(config, separators=(",", ":")))])

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """The Chief or Master decides; without either the success policy does."""
        if self.leader(job) == WORKER and self.spec.success_policy != ALL_WORKERS:
            return 0 in gang[WORKER].completed
        return gang[self.leader(job)].all_succeeded

    def tolerates_failures(self, job: NormalizedJob, role: ReplicaRole) -> bool:
        """A dynamic job continues without workers that failed and are not restarted."""
        dynamic = self.spec.enable_dynamic_worker and role.name == WORKER
        return dynamic and role.restart == RestartPolicy.NEVER

    def failure_reason(self, job: NormalizedJob, gang: ReplicaGang) -> str:
        """The job fails when all workers have ended, some of them permanently failed."""
        role, workers = job.find_role(WORKER), gang[WORKER]
        if self.leader(job) != WORKER or role is None or not self.tolerates_failures(job, role):
            return ""
        over = workers.failed + workers.succeeded == len(workers.pods)
        if not over or self.has_succeeded(job, gang):
            return ""
        required = "all workers" if self.spec.success_policy == ALL_WORKERS else "worker 0"
        return (
            f"TFJob {job.name} has failed because {workers.failed} of its {len(workers.pods)} "
            f"workers failed, the others have ended, and {required} had to succeed."
        )

    def _sparse_cluster(self, job: NormalizedJob, role: ReplicaRole, index: int) -> Manifest:
        servers = job.find_role(PS)
        every_server = self._addresses(job, servers) if servers else []
        if role.name == WORKER:
            return {"worker": {str(index): self._address(job, role, index)}, "ps": every_server}
        return {"worker": {}, "ps": [every_server[index]] if role.name == PS else []}

    def _addresses(self, job: NormalizedJob, role: ReplicaRole) -> list[str]:
        return [self._address(job, role, index) for index in range(role.replicas)]

    def _address(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        host = f"{replica_name(job.name, role.name, index)}.{job.meta.namespace}.svc"
        domain = f".{self.cluster_domain}" if self.cluster_domain else ""
        return f"{host}{domain}:{kubeflow.role_port(KIND, role)}"
