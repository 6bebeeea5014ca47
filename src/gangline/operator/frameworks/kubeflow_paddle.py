"""Kubeflow's PaddleJob: the environment of ``paddle.distributed.launch``.

Without a Master the workers use collectives, and worker 0 is the rendezvous. With one, the Masters
are parameter servers, and the first of them is the rendezvous.

A pod learns the number of pods once, at its start. So the number of workers can change only by a
restart of all, which a job requests by ``elasticPolicy`` (upstream reads no field of it).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gangline.api.jobs import kubeflow_paddle as api
from gangline.api.jobs.kubeflow_paddle import KubeflowPaddleJob, PaddleElasticPolicy
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
    table_entry("PaddleJob.kubeflow.org"),
    container=api.CONTAINER,
    port_name="master",
    port=36543,
    owned_kinds=("HorizontalPodAutoscaler",),
)
MASTER, WORKER = "Master", "Worker"


class KubeflowPaddleFramework(kubeflow.KubeflowFramework[KubeflowPaddleJob]):
    kind = KIND
    roles = api.ROLES
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.ON_FAILURE)

    def rules(self, job: KubeflowPaddleJob) -> "KubeflowPaddleRules":
        return KubeflowPaddleRules(job.spec.elastic_policy)

    def restarts_on_resize(self, job: KubeflowPaddleJob) -> bool:
        return job.spec.elastic_policy is not None


def create_framework(_: OperatorSettings) -> KubeflowPaddleFramework:
    return KubeflowPaddleFramework()


@dataclass(frozen=True, slots=True)
class KubeflowPaddleRules(kubeflow.LeadingRoleRules):
    """The Masters lead, or without one the workers."""

    leaders = (MASTER, WORKER)
    elastic: PaddleElasticPolicy | None = None

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        own = [("PYTHONUNBUFFERED", "1"), ("PADDLE_JOB_ID", job.name), ("PADDLE_NNODES", job.size)]
        elastic = self.elastic.max_restarts if self.elastic else None
        return [
            *kubeflow.env_vars(own),
            *_rendezvous_variables(job, role, index),
            *kubeflow.env_vars(_server_variables(job, role)),
            *kubeflow.env_vars([("PADDLE_MAX_RESTART", elastic)] if elastic is not None else []),
        ]

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        return kubeflow.autoscalers(job, self.elastic, job.find_role(WORKER))

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return role.name == MASTER


def _rendezvous_variables(job: NormalizedJob, role: ReplicaRole, index: int) -> Iterator[Manifest]:
    """The address of the rendezvous. Its own pod listens on its address, not on its name."""
    leader = job.find_role(_leader(job))
    if leader is None:
        return
    host = replica_name(job.name, leader.name, 0)
    if role is leader and index == 0:
        yield kubeflow.field_variable("POD_IP_DUMMY", "status.podIP")
        host = "$(POD_IP_DUMMY)"
    port = kubeflow.role_port(KIND, leader)
    yield {"name": "PADDLE_MASTER", "value": f"{host}:{port}"}


def _server_variables(job: NormalizedJob, role: ReplicaRole) -> Iterator[tuple[str, object]]:
    """In a job with servers each pod runs one server or one trainer."""
    if _leader(job) == MASTER:
        yield "PADDLE_SERVER_NUM" if role.name == MASTER else "PADDLE_TRAINER_NUM", 1


def _leader(job: NormalizedJob) -> str:
    """Return the role of the rendezvous; a Master without replicas is ignored."""
    return kubeflow.leading_role(job, MASTER, WORKER)
