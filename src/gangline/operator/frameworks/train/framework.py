"""TrainJob: reads a job together with its runtime.

A job is made from its runtime once. The copy of the runtime is stored in a ConfigMap of the job
before any pod exists, so a later change of the runtime never reaches the job.
"""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import msgspec

from gangline.api.job_names import MANAGED_BY_MULTI_KUEUE
from gangline.api.jobs.train import (
    STATUS_FIELD,
    TTL_ANNOTATION,
    TrainJob,
    has_upstream_status,
    last_valid_spec,
)
from gangline.api.jobs.training_runtime import (
    NODE,
    READY,
)
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from gangline.api.trainer.effective import EffectiveJob, EffectiveRole
from gangline.api.trainer.policy import effective_job
from gangline.api.validation.effective_job import effective_job_errors, merged_template_errors
from gangline.api.validation.jobs.train import resize_errors
from gangline.api.validation.training_runtime import read_runtime
from gangline.api.volcano.scheduling import NetworkTopology
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.train import status
from gangline.operator.frameworks.train.rules import MissingRuntimeRules, TrainRules
from gangline.operator.model import pod_template
from gangline.operator.model.framework import ParsedJob, RuntimeCopy
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    JobRunPolicy,
    NormalizedJob,
    RawJob,
    ReplicaRole,
    RestartPolicy,
    SchedulingRequest,
    table_entry,
)
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("TrainJob"),
    container=NODE,
    owned_kinds=("ConfigMap", "PersistentVolumeClaim"),
    related_resources=(TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES),
    status_field=STATUS_FIELD,
)
MANAGED_BY_JOB_SET = "jobset.sigs.k8s.io/jobset-controller"
"""The controller of a job that upstream's operator has started; no job can name it."""
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"


_JOB = msgspec.json.Decoder(TrainJob)


class TrainFramework:
    kind = KIND

    def read(self, stored: RawJob) -> ParsedJob:
        return self.read_with_runtime(stored, None, is_known=False)

    def runtime_of(self, stored: RawJob) -> tuple[str, str]:
        """Return kind and name of a job's runtime; empty texts if they cannot be decoded."""
        try:
            written = {"metadata": stored.metadata, "spec": stored.spec}
            ref = _JOB.decode(msgspec.json.encode(written)).spec.runtime_ref
        except msgspec.ValidationError:
            return "", ""
        return ref.kind, ref.name

    def read_with_runtime(
        self, stored: RawJob, runtime: RuntimeCopy | None, *, is_known: bool
    ) -> ParsedJob:
        parsed = self._read(stored, runtime, is_known=is_known)
        # The JobSet of upstream's operator keeps the pods until they end: ours would be a second
        # training beside them. If our copy of the runtime is stored, the job is ours nevertheless,
        # and the cluster's definition drops our status field.
        is_ours = runtime is not None and runtime.is_stored
        if is_ours or not has_upstream_status(stored.status):
            return parsed
        policy = replace(parsed.job.policy, managed_by=MANAGED_BY_JOB_SET)
        return replace(parsed, job=replace(parsed.job, policy=policy))

    def _read(self, stored: RawJob, runtime: RuntimeCopy | None, *, is_known: bool) -> ParsedJob:
        incomplete = partial(_without_runtime, is_known=is_known)
        if runtime is None:
            return kubeflow.parse_job(stored, TrainJob, incomplete)
        spec, runtime_errors = read_runtime(runtime.manifest)
        errors: list[object] = []

        def normalize(job: TrainJob) -> NormalizedJob:
            merged, ref = effective_job(job, spec), job.spec.runtime_ref
            errors[:] = [
                *(f"{ref.kind} {ref.name}: {error}" for error in runtime_errors),
                *effective_job_errors(job, spec, merged),
                *resize_errors(job.spec, last_valid_spec(stored.status), merged.elastic),
                *([] if runtime_errors else merged_template_errors(merged)),
            ]
            return _normalize(job, merged, runtime)

        parsed = kubeflow.parse_job(stored, TrainJob, normalize)
        if not errors:
            return parsed
        listed = "; ".join(str(error) for error in errors)
        return replace(parsed, spec_errors=f"{parsed.spec_errors}; {listed}".removeprefix("; "))


def create_framework(_: OperatorSettings) -> TrainFramework:
    return TrainFramework()


def _without_runtime(job: TrainJob, *, is_known: bool) -> NormalizedJob:
    ref = job.spec.runtime_ref
    return NormalizedJob(
        kind=KIND,
        meta=job.metadata,
        roles=[],
        policy=_policy(job, None),
        rules=MissingRuntimeRules(ref.kind, ref.name, is_known),
    )


def _normalize(job: TrainJob, merged: EffectiveJob, runtime: RuntimeCopy) -> NormalizedJob:
    together = status.restarts_together(merged.spec.template.spec.failure_policy)
    return NormalizedJob(
        kind=KIND,
        meta=job.metadata,
        roles=[_role(merged, role, has_limit=not together) for role in merged.roles],
        policy=_policy(job, merged),
        rules=TrainRules(job.spec, merged, runtime),
        restarts_together=together,
    )


def _role(merged: EffectiveJob, role: EffectiveRole, *, has_limit: bool) -> ReplicaRole:
    never = pod_template.pod_spec(role.template).get("restartPolicy") == RestartPolicy.NEVER
    waits = any(dependency.status == READY for dependency in role.depends_on)
    return ReplicaRole(
        name=role.name,
        replicas=role.replicas,
        restart=RestartPolicy.NEVER if never else RestartPolicy.ON_FAILURE,
        template=role.template,
        # A launcher that waits for its nodes joins them; the gang must start without it. Its
        # resources are reserved: else two jobs whose nodes leave none would wait for ever.
        min_replicas=0 if waits else _least_replicas(merged, role),
        joins_later=waits,
        backoff_limit=_restart_limit(merged, role) if has_limit else None,
    )


def _least_replicas(merged: EffectiveJob, role: EffectiveRole) -> int:
    if merged.elastic is None or not merged.is_elastic(role):
        return role.replicas
    return min(merged.elastic.min_nodes, role.replicas)


def _restart_limit(merged: EffectiveJob, role: EffectiveRole) -> int:
    """Return how many restarts a role may have.

    Each batch Job has this limit: all of them together never exceed it earlier than one does.
    Each node of an elastic job has it too: a node that leaves may restart all others.
    """
    nodes = merged.elastic.max_nodes if merged.elastic and merged.is_elastic(role) else 1
    return role.backoff_limit * role.jobs * nodes


def _policy(job: TrainJob, merged: EffectiveJob | None) -> JobRunPolicy:
    spec = job.spec
    deadline = spec.active_deadline_seconds
    policy = JobRunPolicy(
        clean_pods=CleanPodPolicy.RUNNING,
        ttl=_ttl(job, merged),
        active_deadline=None if deadline is None else timedelta(seconds=deadline),
        suspended=bool(spec.suspend),
        managed_by=spec.managed_by if spec.managed_by == MANAGED_BY_MULTI_KUEUE else None,
    )
    if merged is None:
        return policy
    return replace(
        policy, backoff_limit=_backoff_limit(merged), scheduling=_scheduling(job, merged)
    )


def _backoff_limit(merged: EffectiveJob) -> int | None:
    """Return the limit of the job: ``maxRestarts``, or that of the roles that train.

    Without restarts of all pods, each role has its own limit besides. That of the job counts all
    restarts, such as those which an annotation requests, and is never exceeded before another one.
    """
    failure = merged.spec.template.spec.failure_policy
    if failure and status.restarts_together(failure):
        return failure.max_restarts or 0
    return sum(_restart_limit(merged, role) for role in merged.roles)


def _ttl(job: TrainJob, merged: EffectiveJob | None) -> timedelta | None:
    written = job.metadata.annotations.get(TTL_ANNOTATION, "")
    if written.isascii() and written.isdecimal():
        return timedelta(seconds=int(written))
    seconds = merged.spec.template.spec.ttl_seconds_after_finished if merged else None
    return None if seconds is None else timedelta(seconds=seconds)


def _scheduling(job: TrainJob, merged: EffectiveJob) -> SchedulingRequest:
    queue = merged.annotations.get(QUEUE_ANNOTATION) or job.metadata.annotations.get(
        QUEUE_ANNOTATION, ""
    )
    classes = (
        str(pod_template.pod_spec(role.template).get("priorityClassName") or "")
        for role in merged.training_roles
    )
    group = merged.spec.pod_group_policy
    topology = group.volcano.network_topology if group and group.volcano else None
    return SchedulingRequest(
        queue=queue,
        priority_class=next(filter(None, classes), ""),
        topology=NetworkTopology(topology.mode, topology.highest_tier_allowed)
        if topology
        else None,
    )
