"""MSJob: MindSpore, whose workers and parameter servers register with a scheduler.

The environment is upstream's. Other replicas reach the scheduler through a service with a cluster
IP, which outlives the scheduler's pod. Upstream takes the IP from its cache and starts pods without
any variables if the cache has none. Here the pods are created when the IP is known.

A job without a scheduler has one worker, which gets no variables and trains alone.

As in upstream, worker 0 decides success, or all workers do. With ``enableDynamicWorker`` failed
workers are tolerated. When the last worker has ended without success the job fails, where
upstream's hangs.
"""

from dataclasses import dataclass

from gangline.api.jobs import mindspore as api
from gangline.api.jobs.mindspore import ALL_WORKERS, PS, SCHEDULER, WORKER, MSJob, MSJobSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.model import pod_template
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.policies import gang_restart, restart
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("MSJob"),
    container=api.CONTAINER,
    port_name=api.PORT_NAME,
    port=api.PORT,
    env_in_all_containers=False,
)

_ROLES = {SCHEDULER: "MS_SCHED", PS: "MS_PSERVER", WORKER: "MS_WORKER"}


class MindSporeFramework(kubeflow.KubeflowFramework[MSJob]):
    kind = KIND
    roles = api.ROLES
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.NEVER, clean_pods=CleanPodPolicy.RUNNING)

    def rules(self, job: MSJob) -> "MindSporeRules":
        return MindSporeRules(job.spec)


def create_framework(_: OperatorSettings) -> MindSporeFramework:
    return MindSporeFramework()


@dataclass(frozen=True, slots=True)
class MindSporeRules(kubeflow.LeadingRoleRules):
    leaders = (WORKER,)
    spec: MSJobSpec

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """List the variables of one replica, in upstream's order; none without a scheduler."""
        scheduler = _scheduler(job)
        if scheduler is None:
            return []
        host = (
            kubeflow.field_variable("MS_SCHED_HOST", "status.podIP")
            if role.name == SCHEDULER
            else {"name": "MS_SCHED_HOST", "value": _address(job, gang)}
        )
        values = [
            ("MS_SCHED_PORT", kubeflow.role_port(KIND, scheduler)),
            ("MS_SERVER_NUM", job.count(PS)),
            ("MS_WORKER_NUM", job.count(WORKER)),
            ("MS_ROLE", _ROLES[role.name]),
        ]
        node = kubeflow.field_variable("MS_NODE_ID", "metadata.name")
        return [host, node, *kubeflow.env_vars(values)]

    def can_start(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> bool:
        return role.name == SCHEDULER or _scheduler(job) is None or bool(_address(job, gang))

    def service_overrides(
        self, job: NormalizedJob, role: ReplicaRole, index: int
    ) -> Manifest | None:
        """The scheduler has a service with a cluster IP; other replicas have no service."""
        return {"clusterIP": None} if role.name == SCHEDULER else None

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        """Add the older labels, by which services of upstream's operator select their pods."""
        older = {
            "group-name": api.GROUP,
            "job-name": job.name,
            "replica-type": role.label,
            "replica-index": str(index),
        }
        return pod_template.with_metadata(pod, older, {})

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """Worker 0 decides, or all workers if the success policy requires it."""
        workers = gang[WORKER]
        if self.spec.success_policy == ALL_WORKERS:
            return workers.all_succeeded
        return 0 in workers.completed

    def tolerates_failures(self, job: NormalizedJob, role: ReplicaRole) -> bool:
        """A dynamic job continues without workers that failed permanently."""
        return self.spec.enable_dynamic_worker and role.name == WORKER

    def failure_reason(self, job: NormalizedJob, gang: ReplicaGang) -> str:
        """The job fails when all workers have ended and some of them failed permanently."""
        workers, failed = gang[WORKER], _count_fatal_failures(job, gang)
        over = failed + workers.succeeded == len(workers.pods)
        if not self.spec.enable_dynamic_worker or not failed or not over:
            return ""
        required = "all workers" if self.spec.success_policy == ALL_WORKERS else "worker 0"
        return (
            f"{failed} of its {len(workers.pods)} workers failed, the others have ended, "
            f"and {required} had to succeed."
        )


def _scheduler(job: NormalizedJob) -> ReplicaRole | None:
    """Return the scheduler role; None without replicas, because no other role can register then."""
    role = job.find_role(SCHEDULER)
    return role if role and role.replicas else None


def _address(job: NormalizedJob, gang: ReplicaGang) -> str:
    """Return the scheduler's cluster IP; empty while unknown. MindSpore accepts no host name."""
    service = gang.services.get(replica_name(job.name, SCHEDULER, 0))
    return service.spec.cluster_ip.removeprefix("None") if service else ""


def _count_fatal_failures(job: NormalizedJob, gang: ReplicaGang) -> int:
    role = job.find_role(WORKER)
    if role is None:
        return 0
    judge = (
        gang_restart.gang_failure_action
        if gang_restart.restarts_gang(job)
        else restart.failure_action
    )
    failed = (pod for pod in gang[WORKER].present if pod.failed)
    verdicts = [judge(role.restart, pod, KIND.container) for pod in failed]
    return verdicts.count(restart.FailureAction.FATAL)
