"""Watches jobs and the objects that belong to them, and builds observations from the caches.

``ClusterCache.observe`` collects everything that planning for one job depends on;
``add_job_listener`` reports which job to reconcile after a change. The caches contain only labelled
objects, and only the fields that planning reads.

A job is made from its runtime once. The copy is a ConfigMap of the job, so that a later change of
the runtime, or its deletion, does not reach the job.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from gangline.api.failure import find_disruption
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.jobs.training_runtime import (
    CLUSTER_TRAINING_RUNTIME,
    RUNTIME_COPY_KEY,
    RUNTIME_COPY_LABEL,
    TRAINING_RUNTIME,
    runtime_copy_name,
)
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, POD_GROUPS, TRAINING_RUNTIMES
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.operator.engine import adoption
from gangline.operator.engine.mutation_cache import UnobservedWrites, WrittenStatuses
from gangline.operator.engine.status import decode_status, kind_fields
from gangline.operator.engine.valid_spec import job_in_force, record_spec
from gangline.operator.model import labels
from gangline.operator.model.framework import (
    DecodesStatus,
    Framework,
    NeedsRuntime,
    ParsedJob,
    RuntimeCopy,
)
from gangline.operator.model.job import (
    ExtendsStatus,
    JobKindInfo,
    Manifest,
    NormalizedJob,
    RawJob,
    detach,
    implements,
)
from gangline.operator.model.plan import AnyPodGroup, ObservedJob, OwnedObject, TargetKind
from gangline.operator.model.replicas import ObservedNode, ObservedPod, ObservedService, strip_pod

_JOB = "job"
_NODE = "node"

_Owned = TypeVar("_Owned", bound=Object)


PODS = Resource(ObservedPod, "", "v1", "pods", "Pod")
SERVICES = Resource(ObservedService, "", "v1", "services", "Service")
NODES = Resource(ObservedNode, "", "v1", "nodes", "Node", namespaced=False)
_RBAC = "rbac.authorization.k8s.io"
OWNED_RESOURCES = {
    TargetKind.CONFIG_MAP: Resource(OwnedObject, "", "v1", "configmaps", "ConfigMap"),
    TargetKind.SECRET: Resource(OwnedObject, "", "v1", "secrets", "Secret"),
    TargetKind.SERVICE_ACCOUNT: Resource(
        OwnedObject, "", "v1", "serviceaccounts", "ServiceAccount"
    ),
    TargetKind.ROLE: Resource(OwnedObject, _RBAC, "v1", "roles", "Role"),
    TargetKind.ROLE_BINDING: Resource(OwnedObject, _RBAC, "v1", "rolebindings", "RoleBinding"),
    TargetKind.AUTOSCALER: Resource(
        OwnedObject, "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
    ),
    TargetKind.CLAIM: Resource(
        OwnedObject, "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"
    ),
}
"""Resources of the owned objects, by kind."""
RESOURCES: Mapping[TargetKind, Resource[Any]] = {
    TargetKind.POD: PODS,
    TargetKind.SERVICE: SERVICES,
    TargetKind.POD_GROUP: POD_GROUPS,
    **OWNED_RESOURCES,
}
"""The same of all objects of a job; ``ClusterCache.resources`` has the pod groups in use."""


class JobKey(NamedTuple):
    kind: str
    """The kind's identity."""
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobObservation:
    """A stored job, and everything that planning for it depends on."""

    stored: RawJob
    job_state: ObservedJob
    kind_status: Manifest
    """Fields of the stored status that only this kind has."""


def job_resource(kind: JobKindInfo) -> Resource[RawJob]:
    return replace(kind.resource, type=RawJob)


class ClusterCache:
    """Caches of the cluster's objects. Call ``run`` in a task, and read only after ``synced``."""

    def __init__(
        self,
        client: ApiClient,
        frameworks: Sequence[Framework],
        namespace: str | Sequence[str] | None,
        *,
        with_groups: bool,
        group_resource: Resource[Any] = POD_GROUPS,
    ) -> None:
        self.resources = {**RESOURCES, TargetKind.POD_GROUP: group_resource}
        """Resources of all objects of a job, by kind."""
        self.frameworks: Mapping[str, Framework] = {f.kind.identity: f for f in frameworks}
        self._kinds = adoption.kind_table(f.kind for f in frameworks)
        self.jobs = {
            f.kind.identity: Informer(client, job_resource(f.kind), namespace, transform=detach)
            for f in frameworks
        }
        self.pods = Informer(
            client,
            PODS,
            namespace,
            labels=labels.JOB_NAME,
            indexes={_JOB: _job_of, _NODE: _node_of},
            transform=strip_pod,
        )
        self.services = Informer(
            client, SERVICES, namespace, labels=labels.JOB_NAME, indexes={_JOB: _job_of}
        )
        self.groups: Informer[AnyPodGroup] | None = (
            Informer(client, group_resource, namespace) if with_groups else None
        )
        self.nodes = Informer(client, NODES)
        needs_runtimes = any(isinstance(f, NeedsRuntime) for f in frameworks)
        self.runtimes = RuntimeCache(client, namespace) if needs_runtimes else None
        self.owned_objects = {
            target: Informer(
                client,
                OWNED_RESOURCES[target],
                namespace,
                labels=labels.JOB_NAME,
                indexes={_JOB: _job_of},
                transform=partial(_with_kind, target),
            )
            for target in sorted(
                {TargetKind(kind) for f in frameworks for kind in f.kind.owned_kinds}
            )
        }
        self.informers: Mapping[TargetKind, Informer[Any]] = {
            TargetKind.POD: self.pods,
            TargetKind.SERVICE: self.services,
            **({TargetKind.POD_GROUP: self.groups} if self.groups else {}),
            **self.owned_objects,
        }
        self.unobserved: Mapping[TargetKind, UnobservedWrites[Any]] = {
            target: UnobservedWrites() for target in RESOURCES
        }
        self.written_statuses = WrittenStatuses()
        self.kinds_without_record: set[str] = set()
        """Kinds whose CRD drops the record of the last valid specification."""
        self._disrupted: dict[str, dict[str, ObservedPod]] = {}
        self.pods.add_listener(self._remember_disrupted)
        self._readings: dict[JobKey, tuple[tuple[str, int, str], ParsedJob]] = {}
        for kind, informer in self.jobs.items():
            informer.add_listener(partial(self._forget_deleted, kind))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in (*self.jobs.values(), *self.informers.values(), self.nodes):
                tasks.create_task(informer.run())
            if self.runtimes:
                tasks.create_task(self.runtimes.run())

    async def synced(self) -> None:
        """Wait until the pods, services and pod groups of all jobs are cached.

        It does not wait for jobs: each is reconciled as soon as it is cached, and a missing kind
        must not block the others. It does not wait for owned objects for the same reason: creating
        one twice fails with AlreadyExists. It does not wait for nodes: without the right to read
        them the operator never considers a node lost.
        """
        await self.pods.wait_for_sync()
        await self.services.wait_for_sync()
        if self.groups:
            await self.groups.wait_for_sync()

    def add_job_listener(self, enqueue: Callable[[JobKey], None]) -> None:
        """Call ``enqueue`` for each job that is affected by a change.

        The echo of the operator's own creations is ignored: the pass that created an object
        requeues its job itself.
        """

        def owned(old: Object | None, new: Object | None) -> None:
            for item in (old, new):
                for key in self._jobs_of(item) if item else ():
                    enqueue(key)

        def node(old: ObservedNode | None, new: ObservedNode | None) -> None:
            if old and new and old.is_lost == new.is_lost:
                return
            subject = new or old
            if subject:
                for pod in self.pods.by_index(_NODE, subject.metadata.name):
                    owned(None, pod)

        def written(target: TargetKind, old: Object | None, new: Object | None) -> None:
            if self.unobserved[target].observe(old, new):
                owned(old, new)

        def group(old: AnyPodGroup | None, new: AnyPodGroup | None) -> None:
            subject = new or old
            if subject and labels.JOB_NAME not in subject.metadata.labels:
                for key in self._jobs_named(subject):
                    enqueue(key)

        for kind, jobs in self.jobs.items():
            jobs.add_listener(_job_listener(kind, enqueue))
        for target, informer in self.informers.items():
            informer.add_listener(partial(written, target))
        self.nodes.add_listener(node)
        if self.groups:
            self.groups.add_listener(group)
        if self.runtimes:
            self.runtimes.add_listener(
                partial(owned, None), partial(self._enqueue_runtime_users, enqueue)
            )

    def observe(self, key: JobKey) -> JobObservation | None:
        """Build the observation of a job; None if there is none, or it cannot be read yet."""
        cached = self.find(key)
        if cached is None or not self._can_read(key.kind):
            return None
        stored = self.written_statuses.latest(cached)
        uid = stored.metadata.uid
        status = self.status_of(key.kind, stored)
        reading = self._parse(key, stored)
        pods, other_pods = _split_by_owner(uid, self._objects_of(self.pods, key))
        services, other_services = _split_by_owner(uid, self._objects_of(self.services, key))
        group, other_group = self._pod_group_of(uid, key)
        given = next((other for other in other_group if adoption.is_given_group(other)), None)
        extras, other_extras = self._owned_objects_of(uid, key)
        others: list[tuple[TargetKind, Object]] = [
            *((TargetKind.POD, pod) for pod in other_pods),
            *((TargetKind.SERVICE, service) for service in other_services),
            *((TargetKind.POD_GROUP, other) for other in other_group),
            *((extra.target, extra) for extra in other_extras),
        ]
        taken = {
            (target, item.metadata.name)
            for target, item in others
            if self._becomes_available(key, item)
        }
        pods = self.unobserved[TargetKind.POD].merge_into(uid, pods)
        read = partial(self._read, key.kind)
        job, is_earlier = job_in_force(stored, reading, status, pods, read)
        valid_spec = status.last_valid_spec
        if not reading.spec_errors and key.kind not in self.kinds_without_record:
            valid_spec = record_spec(stored, valid_spec)
        observed = ObservedJob(
            job=job,
            status=status,
            pods=pods,
            services=self.unobserved[TargetKind.SERVICE].merge_into(uid, services),
            pod_group=group,
            given_group=given,
            owned_objects=extras,
            occupied=frozenset(taken),
            lost_nodes=self._lost_nodes(pods),
            spec_errors=reading.spec_errors,
            has_earlier_spec=is_earlier,
            last_valid_spec=valid_spec,
            disrupted=self._disrupted_pods(job, pods),
        )
        kind_status: Manifest = {}
        if implements(job.rules, ExtendsStatus):
            kind_status = kind_fields(job.kind, stored.status)
        return JobObservation(stored, observed, kind_status)

    def has_unobserved_writes(self, uid: str) -> bool:
        return any(objects.has_unobserved(uid) for objects in self.unobserved.values())

    def _forget_deleted(self, kind: str, old: RawJob | None, new: RawJob | None) -> None:
        if new is None and old is not None:
            meta = old.metadata
            self.written_statuses.forget(meta.uid)
            for recent in self.unobserved.values():
                recent.forget(meta.uid)
            self._readings.pop(JobKey(kind, meta.namespace, meta.name), None)
            self._disrupted.pop(meta.uid, None)

    def _remember_disrupted(self, old: ObservedPod | None, new: ObservedPod | None) -> None:
        """Remember pods that the cluster deleted: no pass may happen while they still exist."""
        if new is not None or old is None or not find_disruption(old.status.conditions):
            return
        if owner := old.metadata.controller:
            self._disrupted.setdefault(owner.uid, {})[old.name] = old

    def _disrupted_pods(
        self, job: NormalizedJob, pods: Iterable[ObservedPod]
    ) -> Sequence[ObservedPod]:
        """Return the remembered pods of a job whose successors do not run yet."""
        disrupted = self._disrupted.get(job.meta.uid)
        if not disrupted:
            return ()
        for name in [pod.name for pod in pods if pod.is_active]:
            disrupted.pop(name, None)
        if job.policy.suspended:
            disrupted.clear()
        return list(disrupted.values())

    def _parse(self, key: JobKey, stored: RawJob) -> ParsedJob:
        """Parse a job once per generation: parsing includes validation, which is expensive."""
        meta, framework = stored.metadata, self.frameworks[key.kind]
        runtime, is_known = self._runtime_of(framework, stored)
        version = (meta.uid, meta.generation, runtime.version if runtime else f"{is_known}")
        cached_version, parsed = self._readings.get(key, (None, None))
        if parsed is None or cached_version != version or not meta.generation:
            parsed = self._read(key.kind, stored)
            self._readings[key] = version, parsed
        return replace(parsed, job=replace(parsed.job, meta=meta))

    def _read(self, kind: str, stored: RawJob) -> ParsedJob:
        framework = self.frameworks[kind]
        if not isinstance(framework, NeedsRuntime):
            return framework.read(stored)
        runtime, is_known = self._runtime_of(framework, stored)
        return framework.read_with_runtime(stored, runtime, is_known=is_known)

    def _can_read(self, kind: str) -> bool:
        """Return whether jobs of a kind can be read: not by a runtime of which copies may exist."""
        needs = isinstance(self.frameworks[kind], NeedsRuntime)
        return not needs or self.runtimes is None or self.runtimes.copies.has_synced

    def _runtime_of(self, framework: Framework, stored: RawJob) -> tuple[RuntimeCopy | None, bool]:
        if self.runtimes is None or not isinstance(framework, NeedsRuntime):
            return None, True
        kind, name = framework.runtime_of(stored)
        return self.runtimes.find(stored.metadata, kind, name), self.runtimes.has_synced(kind)

    def _enqueue_runtime_users(self, enqueue: Callable[[JobKey], None], namespace: str) -> None:
        for kind, framework in self.frameworks.items():
            if isinstance(framework, NeedsRuntime):
                for job in self.jobs[kind].items():
                    meta = job.metadata
                    if namespace in ("", meta.namespace):
                        enqueue(JobKey(kind, meta.namespace, meta.name))

    def find(self, key: JobKey) -> RawJob | None:
        return self.jobs[key.kind].get(key.namespace, key.name)

    def namespaces_with_jobs(self) -> set[str]:
        return {job.metadata.namespace for jobs in self.jobs.values() for job in jobs.items()}

    def status_of(self, kind: str, stored: RawJob) -> JobStatus:
        """Decode a stored status. Raises msgspec.DecodeError: it has another form."""
        framework = self.frameworks[kind]
        if isinstance(framework, DecodesStatus):
            return framework.read_status(stored)
        return decode_status(framework.kind, stored.status)

    def _owned_objects_of(
        self, uid: str, key: JobKey
    ) -> tuple[list[OwnedObject], list[OwnedObject]]:
        own: list[OwnedObject] = []
        others: list[OwnedObject] = []
        for target in map(TargetKind, self.frameworks[key.kind].kind.owned_kinds):
            ours, theirs = _split_by_owner(uid, self._objects_of(self.owned_objects[target], key))
            own += self.unobserved[target].merge_into(uid, ours)
            others += theirs
        return own, others

    def _objects_of(self, informer: Informer[_Owned], key: JobKey) -> list[_Owned]:
        return informer.by_index(_JOB, f"{key.namespace}/{key.name}")

    def _pod_group_of(self, uid: str, key: JobKey) -> tuple[AnyPodGroup | None, list[AnyPodGroup]]:
        if self.groups is None:
            return None, []
        cached = self.groups.get(key.namespace, key.name)
        own, others = _split_by_owner(uid, [cached] if cached else [])
        own = self.unobserved[TargetKind.POD_GROUP].merge_into(uid, own)
        return (own[0] if own else None), others

    def _jobs_named(self, group: Object) -> list[JobKey]:
        namespace, name = group.metadata.namespace, group.metadata.name
        return [
            JobKey(kind, namespace, name)
            for kind, jobs in self.jobs.items()
            if jobs.get(namespace, name)
        ]

    def _lost_nodes(self, pods: Iterable[ObservedPod]) -> frozenset[str]:
        """Return the lost nodes that have terminating pods; empty while nodes cannot be read."""
        if not self.nodes.has_synced or self.nodes.problem:
            return frozenset()
        used = {pod.spec.node_name for pod in pods if pod.is_terminating} - {""}
        nodes = {name: self.nodes.get(None, name) for name in used}
        return frozenset(name for name, node in nodes.items() if node is None or node.is_lost)

    def _jobs_of(self, item: Object) -> list[JobKey]:
        """Return the job of an object: by its controller, else by its labels.

        Labels name the jobs of several kinds if these have one name.
        """
        meta = item.metadata
        owner = meta.controller
        kind = adoption.kind_of(owner, self._kinds)
        if owner and kind:
            return [JobKey(kind.identity, meta.namespace, owner.name)]
        controller, name = meta.labels.get(labels.OPERATOR_NAME), meta.labels.get(labels.JOB_NAME)
        return [
            JobKey(kind.identity, meta.namespace, name)
            for kind in self._kinds.values()
            if name and kind.controller == controller
        ]

    def _becomes_available(self, key: JobKey, item: Object) -> bool:
        """Return whether an occupying object will be deleted or adopted without user action.

        True for objects of a deleted job with the same name, for orphans, and for groups that are
        being deleted. For other owners, creation must fail, so that the conflict is reported in the
        job's status.
        """
        owner = item.metadata.controller
        if isinstance(item, AnyPodGroup) and item.metadata.deletion_timestamp is not None:
            return True
        if owner is None:
            return adoption.is_claimable(item)
        return owner.name == key.name and self.frameworks[key.kind].kind.is_kind_of(owner)


class RawRuntime(Object):
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class StoredCopy(Object):
    data: dict[str, str] = msgspec.field(default_factory=dict)


_COPIES = Resource(StoredCopy, "", "v1", "configmaps", "ConfigMap")


class RuntimeCache:
    def __init__(self, client: ApiClient, namespace: str | Sequence[str] | None) -> None:
        self.copies = Informer(client, _COPIES, namespace, labels=RUNTIME_COPY_LABEL)
        self._runtime_listeners: list[Callable[[str], None]] = []
        self._by_kind = {
            TRAINING_RUNTIME: Informer(
                client, _runtime_resource(TRAINING_RUNTIMES), namespace, transform=_detach_runtime
            ),
            CLUSTER_TRAINING_RUNTIME: Informer(
                client, _runtime_resource(CLUSTER_TRAINING_RUNTIMES), transform=_detach_runtime
            ),
        }

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.copies.run())
            tasks.create_task(self._report_copies())
            for informer in self._by_kind.values():
                tasks.create_task(informer.run())

    async def _report_copies(self) -> None:
        """Report a change of all runtimes when the copies are cached: no job was read before."""
        await self.copies.wait_for_sync()
        for listener in self._runtime_listeners:
            listener("")

    def add_listener(
        self, copy: Callable[[StoredCopy], None], runtime: Callable[[str], None]
    ) -> None:
        """Call ``copy`` with each changed copy, and ``runtime`` with the namespace of a runtime.

        The namespace is empty for runtimes of the cluster.
        """

        def copy_changed(old: StoredCopy | None, new: StoredCopy | None) -> None:
            if subject := new or old:
                copy(subject)

        def runtime_changed(old: RawRuntime | None, new: RawRuntime | None) -> None:
            if subject := new or old:
                runtime(subject.metadata.namespace)

        self._runtime_listeners.append(runtime)
        self.copies.add_listener(copy_changed)
        for informer in self._by_kind.values():
            informer.add_listener(runtime_changed)

    def has_synced(self, kind: str) -> bool:
        """Return whether all runtimes of a kind are cached; True for an unknown kind."""
        informer = self._by_kind.get(kind)
        return informer is None or (informer.has_synced and not informer.problem)

    def find(self, job: ObjectMeta, kind: str, name: str) -> RuntimeCopy | None:
        """Return the runtime of a job: the copy that is stored for it, else the present one."""
        stored = self.copies.get(job.namespace, runtime_copy_name(job.name))
        owner = stored.metadata.controller if stored else None
        if stored and owner and owner.uid == job.uid and RUNTIME_COPY_KEY in stored.data:
            text = stored.data[RUNTIME_COPY_KEY].encode()
            return RuntimeCopy(text, stored.metadata.resource_version, is_stored=True)
        informer = self._by_kind.get(kind)
        if informer is None:
            return None
        runtime = informer.get(job.namespace if informer.resource.namespaced else None, name)
        if runtime is None or runtime.metadata.deletion_timestamp is not None:
            return None
        version = f"{runtime.metadata.uid}/{runtime.metadata.resource_version}"
        return RuntimeCopy(_runtime_manifest(runtime, kind), version, is_stored=False)


def _with_kind(target: TargetKind, item: OwnedObject) -> OwnedObject:
    """Add the kind, which the items of a list response lack."""
    return msgspec.structs.replace(item, kind=target)


def _job_of(item: Object) -> Iterable[str]:
    name = item.metadata.labels.get(labels.JOB_NAME)
    return (f"{item.metadata.namespace}/{name}",) if name else ()


def _node_of(pod: ObservedPod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _split_by_owner(uid: str, items: Iterable[_Owned]) -> tuple[list[_Owned], list[_Owned]]:
    """Separate the objects of a job from objects of other owners with the same job name."""
    own: list[_Owned] = []
    others: list[_Owned] = []
    for item in items:
        owner = item.metadata.controller
        (own if owner and owner.uid == uid else others).append(item)
    return own, others


def _job_listener(
    kind: str, enqueue: Callable[[JobKey], None]
) -> Callable[[RawJob | None, RawJob | None], None]:
    def changed(old: RawJob | None, new: RawJob | None) -> None:
        job = new or old
        if job:
            enqueue(JobKey(kind, job.metadata.namespace, job.metadata.name))

    return changed


def _runtime_resource(resource: Resource[Any]) -> Resource[RawRuntime]:
    return replace(resource, type=RawRuntime)


def _detach_runtime(runtime: RawRuntime) -> RawRuntime:
    """Copy a runtime out of its watch message, which otherwise stays in memory with it."""
    return msgspec.structs.replace(runtime, spec=msgspec.Raw(bytes(runtime.spec)))


def _runtime_manifest(runtime: RawRuntime, kind: str) -> bytes:
    """Return a runtime as it is stored for a job: without what the server adds."""
    meta = runtime.metadata
    return msgspec.json.encode(
        {
            "apiVersion": TRAINING_RUNTIMES.api_version,
            "kind": kind,
            "metadata": {"name": meta.name} | ({"labels": meta.labels} if meta.labels else {}),
            "spec": runtime.spec,
        }
    )
