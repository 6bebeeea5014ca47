"""ElasticJob: DLRover's elastic training, with a master that forms the world of nodes.

The operator creates all pods: the master, and also workers, parameter servers, chief and
evaluators, which DLRover leaves to its master. So the master may fail at any moment: no state that
is needed to continue exists only in its memory. ``rules`` decides what a failure leads to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from gangline.api.jobs.elastic import (
    CONTAINER,
    MASTER,
    TRAINING_ROLES,
    WORKER,
    ElasticJob,
    EnvVariable,
    WorkerRange,
    job_node_range,
)
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.resources import SCALE_PLANS
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.elastic.master import master_template
from gangline.operator.frameworks.elastic.pods import PORT, replica_spec_of
from gangline.operator.frameworks.elastic.rules import STATUS_DECODER, ElasticRules
from gangline.operator.model import pod_template
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    NormalizedJob,
    RawJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("ElasticJob"),
    container=CONTAINER,
    port=PORT,
    env_in_all_containers=False,
    owned_kinds=("ConfigMap", "Role", "RoleBinding", "ServiceAccount"),
    shared_memory_roles=frozenset(TRAINING_ROLES),
    related_resources=(SCALE_PLANS,),
)

_DEFAULTS = kubeflow.KindDefaults(restart=RestartPolicy.NEVER, clean_pods=CleanPodPolicy.RUNNING)


@dataclass(frozen=True, slots=True)
class ElasticFramework:
    master_image: str = ""
    """The image of masters; empty: the workers' image."""

    @property
    def kind(self) -> JobKindInfo:
        return KIND

    def read(self, stored: RawJob) -> ParsedJob:
        return kubeflow.parse_job(stored, ElasticJob, self._normalize)

    def read_status(self, stored: RawJob) -> JobStatus:
        return STATUS_DECODER.decode(stored.status)

    def _normalize(self, job: ElasticJob) -> NormalizedJob:
        nodes, spec = node_range_of(job), job.spec
        policy = kubeflow.parse_run_policy(spec.run_policy, _DEFAULTS)
        suspended = bool(spec.suspend or spec.suspended)
        trained = [_role(job, name, nodes) for name in TRAINING_ROLES]
        roles = [role for role in trained if role is not None]
        roles = [*([self._master(job, roles)] if roles else []), *roles]
        return NormalizedJob(
            kind=KIND,
            meta=job.metadata,
            roles=[_with_variables(role, job.spec.envs) for role in roles],
            policy=replace(policy, suspended=policy.suspended or suspended),
            rules=ElasticRules(job.spec, nodes),
        )

    def _master(self, job: ElasticJob, roles: list[ReplicaRole]) -> ReplicaRole:
        given = replica_spec_of(job.spec, MASTER)
        workers = sum(role.replicas for role in roles if role.name == WORKER)
        first = pod_template.main_container(roles[0].template, CONTAINER)
        return ReplicaRole(
            name=MASTER,
            replicas=1,
            restart=RestartPolicy.NEVER,
            template=master_template(
                job.metadata.name,
                job.metadata.namespace,
                workers,
                given.template if given else {},
                self.master_image,
                str(first.get("image") or ""),
            ),
            min_replicas=1,
        )


def create_framework(settings: OperatorSettings) -> ElasticFramework:
    return ElasticFramework(settings.elastic_master_image)


def _with_variables(role: ReplicaRole, envs: Mapping[str, EnvVariable]) -> ReplicaRole:
    """Set the variables that the job gives to all roles, over those of a role's template."""
    given = [
        {**msgspec.to_builtins(variable), "name": variable.name or key}
        for key, variable in envs.items()
    ]
    names = [variable["name"] for variable in given]
    template = pod_template.with_environment(role.template, given, names, CONTAINER)
    return replace(role, template=template)


def node_range_of(job: ElasticJob) -> WorkerRange | None:
    """Return the range of workers that a job allows; None if it sets none."""
    written = replica_spec_of(job.spec, WORKER)
    if written is None:
        return None
    container = pod_template.main_container(written.template, CONTAINER)
    workers = 1 if written.replicas is None else written.replicas
    return job_node_range(job.metadata.annotations, container, workers)


def _role(job: ElasticJob, name: str, nodes: WorkerRange | None) -> ReplicaRole | None:
    written = replica_spec_of(job.spec, name)
    if written is None:
        return None
    replicas = 1 if written.replicas is None else written.replicas
    ranged = name == WORKER and nodes is not None
    return ReplicaRole(
        name=name,
        replicas=replicas,
        restart=RestartPolicy.NEVER,
        template=written.template,
        min_replicas=min(nodes.min_nodes, replicas) if ranged and nodes else replicas,
    )
