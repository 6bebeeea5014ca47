"""MSJob: MindSpore, whose workers and parameter servers register with a scheduler.

The environment is upstream's. Other replicas reach the scheduler through a service with a cluster
IP, which outlives the scheduler's pod. Upstream takes the IP from its cache and starts pods without
any variables if the cache has none. Here the pods are created when the IP is known.

A job without a scheduler has one worker, which gets no variables and trains alone.

As in upstream, worker 0 decides success, or all workers do. With ``enableDynamicWorker`` failed
workers are tolerated. When the last worker has ended without success the job fails, where
upstream's hangs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.api import mindspore as api
from gangline.api.mindspore import ALL_WORKERS, PS, SCHEDULER, WORKER, MSJob, MSJobSpec
from gangline.api.validation import validate_job
from gangline.operator import template
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.base import Reading
from gangline.operator.job import (
    CleanPodPolicy,
    Kind,
    Manifest,
    RestartPolicy,
    Role,
    TrainingJob,
)
from gangline.operator.labels import replica_name
from gangline.operator.policies import restart, together
from gangline.operator.replicas import Gang
from gangline.operator.stored import StoredJob

KIND = Kind(
    kind="MSJob",
    group=api.GROUP,
    version=api.VERSION,
    plural="msjobs",
    framework="mindspore",
    controller="msjob-controller",
    container=api.CONTAINER,
    port_name=api.PORT_NAME,
    port=api.PORT,
    everywhere=False,
)

_DEFAULTS = kubeflow.Defaults(restart=RestartPolicy.NEVER, clean_pods=CleanPodPolicy.RUNNING)
_ROLES = {SCHEDULER: "MS_SCHED", PS: "MS_PSERVER", WORKER: "MS_WORKER"}


class MindSpore:
    """The framework of MSJobs."""

    kind = KIND

    def read(self, stored: StoredJob) -> Reading:
        return kubeflow.read(stored, MSJob, validate_job, self._form)

    def _form(self, job: MSJob) -> TrainingJob:
        spec = job.spec
        return TrainingJob(
            kind=KIND,
            meta=job.metadata,
            roles=kubeflow.roles(KIND, spec.ms_replica_specs, api.ROLES, _DEFAULTS),
            policy=kubeflow.run_policy(spec.run_policy, _DEFAULTS),
            rules=MindSporeRules(spec),
        )


@dataclass(frozen=True, slots=True)
class MindSporeRules:
    """The rules of MSJobs."""

    spec: MSJobSpec

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables of one replica, in upstream's order; none in a job without a
        scheduler.
        """
        scheduler = _scheduler(job)
        if scheduler is None:
            return []
        host = (
            _own_field("MS_SCHED_HOST", "status.podIP")
            if role.name == SCHEDULER
            else {"name": "MS_SCHED_HOST", "value": _address(job, gang)}
        )
        values = [
            ("MS_SCHED_PORT", kubeflow.port(KIND, scheduler)),
            ("MS_SERVER_NUM", _count(job, PS)),
            ("MS_WORKER_NUM", _count(job, WORKER)),
            ("MS_ROLE", _ROLES[role.name]),
        ]
        return [host, _own_field("MS_NODE_ID", "metadata.name"), *kubeflow.variables(values)]

    def can_start(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> bool:
        """Return whether the scheduler's address is known."""
        return role.name == SCHEDULER or _scheduler(job) is None or bool(_address(job, gang))

    def service(self, job: TrainingJob, role: Role, index: int) -> Manifest | None:
        """The scheduler has a service with a cluster IP; other replicas have no service."""
        return {"clusterIP": None} if role.name == SCHEDULER else None

    def shape_pod(
        self, job: TrainingJob, role: Role, index: int, pod: Manifest, gang: Gang
    ) -> Manifest:
        """Add the older labels, by which services of upstream's operator select their pods."""
        return template.with_metadata(pod, dict(_older_labels(job, role, index)), {})

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        """Worker 0 is the master: its end is the job's unless the success policy differs."""
        return (role.name, index) == (WORKER, 0)

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        """Worker 0 decides, or all workers if the success policy requires it."""
        workers = gang[WORKER]
        if self.spec.success_policy == ALL_WORKERS:
            return workers.all_succeeded
        return 0 in workers.completed

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        return gang[WORKER].active > 0

    def tolerates(self, job: TrainingJob, role: Role) -> bool:
        """A dynamic job continues without workers that failed permanently."""
        return self.spec.enable_dynamic_worker and role.name == WORKER

    def has_failed(self, job: TrainingJob, gang: Gang) -> str:
        """The job fails when all workers have ended and some of them failed permanently."""
        workers, failed = gang[WORKER], _failed_for_good(job, gang)
        over = failed + workers.succeeded == len(workers.pods)
        if not self.spec.enable_dynamic_worker or not failed or not over:
            return ""
        required = "all workers" if self.spec.success_policy == ALL_WORKERS else "worker 0"
        return (
            f"{failed} of its {len(workers.pods)} workers failed, the others have ended, "
            f"and {required} had to succeed."
        )


def _scheduler(job: TrainingJob) -> Role | None:
    """Return the scheduler role; None without replicas, because no other role can register then."""
    role = job.role(SCHEDULER)
    return role if role and role.replicas else None


def _address(job: TrainingJob, gang: Gang) -> str:
    """Return the scheduler's cluster IP; empty while unknown. MindSpore accepts no host name."""
    service = gang.services.get(replica_name(job.name, SCHEDULER, 0))
    return service.spec.cluster_ip.removeprefix("None") if service else ""


def _failed_for_good(job: TrainingJob, gang: Gang) -> int:
    """Count the workers that failed and are not replaced."""
    role = job.role(WORKER)
    if role is None:
        return 0
    judge = together.judged if together.restarts(job) else restart.judge
    failed = (pod for pod in gang[WORKER].present if pod.failed)
    verdicts = [judge(role.restart, pod, KIND.container) for pod in failed]
    return verdicts.count(restart.Judgement.FATAL)


def _count(job: TrainingJob, name: str) -> int:
    role = job.role(name)
    return role.replicas if role else 0


def _own_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _older_labels(job: TrainingJob, role: Role, index: int) -> Iterator[tuple[str, str]]:
    yield "group-name", KIND.group
    yield "job-name", job.name
    yield "replica-type", role.label
    yield "replica-index", str(index)
