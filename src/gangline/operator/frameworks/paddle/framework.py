"""PaddleJob: parameter servers and trainers, or trainers that use collectives.

Names, labels, environment and services are upstream's, and so are restarts: by the pod template,
which means none unless the template sets a policy. Replicas find each other through a ConfigMap
that their containers wait for (``network``). Differences from upstream:

- the job has succeeded when its workers have; running servers do not keep it alive;
- a heterogeneous worker gets the variable names that the framework reads;
- workers of an elastic job need an etcd for their rendezvous. Without an etcd address each would
  train alone; then the job gets its ConfigMap and restarts all replicas when it is resized;
- no pod waits in an init container, unless the administrator enables it.
"""

from dataclasses import dataclass, replace

from gangline.api.jobs import paddle as api
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.jobs.kubeflow import RunPolicy as RunPolicyFields
from gangline.api.jobs.paddle import PS, SERVICE, WORKER, PaddleJob, PaddleJobSpec, ResourceSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.paddle import pods
from gangline.operator.frameworks.paddle import status as paddle_status
from gangline.operator.frameworks.paddle.pods import PaddleReplica, PaddleSettings
from gangline.operator.model import pod_template
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    JobRunPolicy,
    Manifest,
    NormalizedJob,
    RawJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("PaddleJob"),
    container=api.CONTAINER,
    port_name="paddle-port",
    port=pods.PORT,
    env_in_all_containers=False,
    owned_kinds=("ConfigMap",),
    finalizers=("finalizers.paddlepaddle.org",),
)

_DEFAULTS = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)
_CLEAN_POLICIES = {
    api.ALWAYS: (CleanPodPolicy.ALL, CleanPodPolicy.ALL),
    api.ON_COMPLETION: (CleanPodPolicy.ALL, CleanPodPolicy.RUNNING),
    api.ON_FAILURE: (CleanPodPolicy.RUNNING, CleanPodPolicy.ALL),
    api.NEVER: (CleanPodPolicy.RUNNING, CleanPodPolicy.NONE),
}
"""Clean pod policies after success and after failure. Servers that run after success are useless.
Pods that run after a failure are retained only for users who set ``Never``.
"""


class PaddleFramework:
    kind = KIND

    def __init__(self, init_image: str = "", etcd_server: str = "") -> None:
        self._settings = PaddleSettings(init_image, etcd_server)

    def read(self, stored: RawJob) -> ParsedJob:
        return kubeflow.parse_job(stored, PaddleJob, self._normalize)

    def read_status(self, stored: RawJob) -> JobStatus:
        """Decode the stored status, also one written by upstream's operator."""
        return paddle_status.decode_paddle_status(stored)

    def _normalize(self, job: PaddleJob) -> NormalizedJob:
        spec = job.spec
        elastic = pods.elastic_range(spec, self._settings)
        return NormalizedJob(
            kind=KIND,
            meta=job.metadata,
            roles=[_role(spec, name, given, elastic) for name, given in spec.declared_roles()],
            policy=_policy(spec),
            rules=PaddleRules(spec, self._settings),
            restart_on_resize=spec.elastic is not None and elastic is None,
        )


def create_framework(settings: OperatorSettings) -> PaddleFramework:
    return PaddleFramework(settings.paddle_init_image, settings.paddle_etcd_server)


@dataclass(frozen=True, slots=True)
class PaddleRules:
    spec: PaddleJobSpec
    settings: PaddleSettings

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return PaddleReplica(job, self.spec, self.settings, role, index).environment()

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        return PaddleReplica(job, self.spec, self.settings, role, index).shape(pod)

    def service_overrides(
        self, job: NormalizedJob, role: ReplicaRole, index: int
    ) -> Manifest | None:
        """Declare a replica's ports; select by upstream's label, which matches its pods too."""
        first = pods.first_port(job, self.spec, role.name, index)
        return {
            "selector": {pods.NAME_LABEL: replica_name(job.name, role.name, index)},
            "ports": pods.service_ports(first),
        }

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        """Return the ConfigMap; empty if workers use an etcd."""
        if pods.uses_etcd(self.spec, self.settings):
            return []
        return [pods.config_map(job, self.spec, gang)]

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        """Worker 0 is the master, or the first replica of a job without workers."""
        return (role.name, index) == (kubeflow.leading_role(job, WORKER, *api.ROLES, ""), 0)

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """All trainers have succeeded, or all servers in a job without trainers."""
        trainers = [role.name for role in job.roles if role.replicas and role.name != PS]
        deciding = trainers or [PS]
        return all(gang[name].all_succeeded for name in deciding)

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return paddle_status.all_running(gang)

    def status_fields(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> Manifest:
        return paddle_status.paddle_status_fields(job, self.spec, gang, status)


def _role(
    spec: PaddleJobSpec, name: str, given: ResourceSpec, elastic: tuple[int, int] | None
) -> ReplicaRole:
    least = elastic[0] if elastic and name == WORKER else given.count
    return ReplicaRole(
        name=name,
        replicas=given.count,
        min_replicas=min(least, given.count),
        restart=_restart(spec, name, given),
        template=given.template,
    )


def _restart(spec: PaddleJobSpec, name: str, given: ResourceSpec) -> RestartPolicy:
    """Choose as upstream: workers in Service mode may restart, others by their template."""
    if spec.elastic is not None:
        return RestartPolicy.ON_FAILURE
    if policy := pod_template.pod_spec(given.template).get("restartPolicy"):
        return RestartPolicy(policy)
    by_name = name == WORKER and spec.intranet == SERVICE
    return RestartPolicy.ON_FAILURE if by_name else RestartPolicy.NEVER


def _policy(spec: PaddleJobSpec) -> JobRunPolicy:
    given = spec.run_policy
    common = RunPolicyFields(
        ttl_seconds_after_finished=given.ttl_seconds_after_finished,
        active_deadline_seconds=given.active_deadline_seconds,
        backoff_limit=given.backoff_limit,
        suspend=given.suspend,
        managed_by=given.managed_by,
        scheduling_policy=spec.scheduling_policy,
    )
    word = spec.clean_pod_policy or api.ON_COMPLETION
    after_success, after_failure = _CLEAN_POLICIES.get(word, _CLEAN_POLICIES[api.NEVER])
    policy = kubeflow.parse_run_policy(common, _DEFAULTS)
    return replace(policy, clean_pods=after_success, clean_after_failure=after_failure)
