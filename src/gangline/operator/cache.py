"""Watches jobs and the objects that belong to them, and builds observations from the caches.

``observe`` collects everything that planning for one job depends on; ``on_change`` reports which
job to reconcile after a change. The caches contain only labelled objects, and only the fields that
planning reads.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from gangline.api.kubeflow import JobStatus
from gangline.api.meta import Object
from gangline.api.resource import Resource
from gangline.api.resources import POD_GROUPS
from gangline.api.scheduling import PodGroup
from gangline.kube.client import Client
from gangline.kube.informer import Informer
from gangline.operator import adoption, labels
from gangline.operator.decision import Extra, Observed, Target
from gangline.operator.frameworks.base import Framework, Reading, ReadsStatus
from gangline.operator.job import Kind, Manifest, ShowsStatus, TrainingJob, offers
from gangline.operator.recent import RecentObjects, RecentStatus
from gangline.operator.replicas import Node, Pod, Service, lean
from gangline.operator.stored import StoredJob, detached

_STATUS = msgspec.json.Decoder(JobStatus)
_COMMON_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(JobStatus))
_JOB = "job"
_NODE = "node"

_Owned = TypeVar("_Owned", bound=Object)


PODS = Resource(Pod, "", "v1", "pods", "Pod")
SERVICES = Resource(Service, "", "v1", "services", "Service")
NODES = Resource(Node, "", "v1", "nodes", "Node", namespaced=False)
_RBAC = "rbac.authorization.k8s.io"
EXTRAS = {
    Target.CONFIG_MAP: Resource(Extra, "", "v1", "configmaps", "ConfigMap"),
    Target.SECRET: Resource(Extra, "", "v1", "secrets", "Secret"),
    Target.SERVICE_ACCOUNT: Resource(Extra, "", "v1", "serviceaccounts", "ServiceAccount"),
    Target.ROLE: Resource(Extra, _RBAC, "v1", "roles", "Role"),
    Target.ROLE_BINDING: Resource(Extra, _RBAC, "v1", "rolebindings", "RoleBinding"),
    Target.AUTOSCALER: Resource(
        Extra, "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
    ),
}
"""Resources of the owned objects, by kind."""


class JobKey(NamedTuple):
    """Identifies a job."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Sight:
    """A stored job, and everything that planning for it depends on."""

    stored: StoredJob
    observed: Observed
    own_fields: Manifest
    """Fields of the stored status that only this kind has."""


def job_resource(kind: Kind) -> Resource[StoredJob]:
    return Resource(StoredJob, kind.group, kind.version, kind.plural, kind.kind)


class Cache:
    """Caches of the cluster's objects. Call ``run`` in a task, and read only after ``synced``."""

    def __init__(
        self,
        client: Client,
        frameworks: Sequence[Framework],
        namespace: str | Sequence[str] | None,
        *,
        with_groups: bool,
    ) -> None:
        self.frameworks: Mapping[str, Framework] = {f.kind.kind: f for f in frameworks}
        self._kind_of = {f.kind.controller: f.kind.kind for f in frameworks}
        self.jobs = {
            f.kind.kind: Informer(client, job_resource(f.kind), namespace, transform=detached)
            for f in frameworks
        }
        by_job = {_JOB: _job_of}
        self.pods = Informer(
            client,
            PODS,
            namespace,
            labels=labels.JOB_NAME,
            indexes={_JOB: _job_of, _NODE: _node_of},
            transform=lean,
        )
        self.services = Informer(
            client, SERVICES, namespace, labels=labels.JOB_NAME, indexes=by_job
        )
        self.groups = Informer(client, POD_GROUPS, namespace) if with_groups else None
        self.nodes = Informer(client, NODES)
        self.extras = {
            target: Informer(
                client,
                EXTRAS[target],
                namespace,
                labels=labels.JOB_NAME,
                indexes={_JOB: _job_of},
                transform=partial(_of_kind, target),
            )
            for target in sorted({Target(kind) for f in frameworks for kind in f.kind.makes})
        }
        self.recent_pods: RecentObjects[Pod] = RecentObjects()
        self.recent_services: RecentObjects[Service] = RecentObjects()
        self.recent_groups: RecentObjects[PodGroup] = RecentObjects()
        self.recent_extras: Mapping[Target, RecentObjects[Extra]] = {
            target: RecentObjects() for target in EXTRAS
        }
        self.recent_status = RecentStatus()
        self._readings: dict[JobKey, tuple[tuple[str, int], Reading]] = {}
        self._listen()

    async def run(self) -> None:
        """Watch the cluster until cancelled."""
        followers: list[Informer[Any]] = [
            *self.jobs.values(),
            self.pods,
            self.services,
            self.nodes,
            *self.extras.values(),
        ]
        async with asyncio.TaskGroup() as tasks:
            for informer in followers:
                tasks.create_task(informer.run())
            if self.groups:
                tasks.create_task(self.groups.run())

    async def synced(self) -> None:
        """Wait until the pods, services and pod groups of all jobs are cached.

        It does not wait for jobs: each is reconciled as soon as it is cached, and a missing kind
        must not block the others. It does not wait for owned objects for the same reason: creating
        one twice fails with AlreadyExists. It does not wait for nodes: without the right to read
        them the operator never considers a node lost.
        """
        await self.pods.synced()
        await self.services.synced()
        if self.groups:
            await self.groups.synced()

    def on_change(self, look_at: Callable[[JobKey], None]) -> None:
        """Call ``look_at`` for each job that is affected by a change.

        The echo of the operator's own creations is ignored: the pass that created an object
        requeues its job itself.
        """

        def owned(old: Object | None, new: Object | None) -> None:
            for item in (old, new):
                key = self._key_of_owned(item) if item else None
                if key:
                    look_at(key)

        def node(old: Node | None, new: Node | None) -> None:
            if old and new and old.lost == new.lost:
                return
            subject = new or old
            if subject:
                for pod in self.pods.by_index(_NODE, subject.metadata.name):
                    owned(None, pod)

        def heard(recent: RecentObjects[Any], old: Object | None, new: Object | None) -> None:
            if recent.shown(old, new):
                owned(old, new)

        for kind, informer in self.jobs.items():
            informer.add_listener(_job_listener(kind, look_at))
        self.pods.add_listener(partial(heard, self.recent_pods))
        self.services.add_listener(partial(heard, self.recent_services))
        self.nodes.add_listener(node)
        for target, followed in self.extras.items():
            followed.add_listener(partial(heard, self.recent_extras[target]))
        if self.groups:
            self.groups.add_listener(partial(heard, self.recent_groups))

    def observe(self, key: JobKey) -> Sight | None:
        """Build the observation of a job; None if there is no such job.

        Raises:
            msgspec.DecodeError: the job's stored status cannot be decoded.
        """
        cached = self.jobs[key.kind].get(key.namespace, key.name)
        if cached is None:
            return None
        stored = self.recent_status.newest(cached)
        uid = stored.metadata.uid
        reading = self._read(key, stored)
        pods, other_pods = _split(uid, self._of_job(self.pods, key))
        services, other_services = _split(uid, self._of_job(self.services, key))
        group, other_group = self._group(uid, key)
        extras, other_extras = self._extras(uid, key)
        others: list[tuple[Target, Object]] = [
            *((Target.POD, pod) for pod in other_pods),
            *((Target.SERVICE, service) for service in other_services),
            *((Target.POD_GROUP, each) for each in other_group),
            *((extra.target, extra) for extra in other_extras),
        ]
        taken = {(target, item.metadata.name) for target, item in others if _passes(key, item)}
        pods = self.recent_pods.over(uid, pods)
        observed = Observed(
            job=reading.job,
            status=self._status(key.kind, stored),
            pods=pods,
            services=self.recent_services.over(uid, services),
            pod_group=group,
            extras=extras,
            taken=frozenset(taken),
            lost_nodes=self._lost_nodes(pods),
            mistakes=reading.mistakes,
        )
        return Sight(stored, observed, _own_fields(stored, reading.job))

    def owed(self, uid: str) -> bool:
        """Return whether the watches do not show yet all objects that were written for a job."""
        return any(objects.pending(uid) for objects in self._recent())

    def _recent(self) -> tuple[RecentObjects[Any], ...]:
        return (
            self.recent_pods,
            self.recent_services,
            self.recent_groups,
            *self.recent_extras.values(),
        )

    def _listen(self) -> None:
        for kind, informer in self.jobs.items():
            informer.add_listener(partial(self._forget_gone, kind))

    def _forget_gone(self, kind: str, old: StoredJob | None, new: StoredJob | None) -> None:
        if new is None and old is not None:
            meta = old.metadata
            self.recent_status.forget(meta.uid)
            for recent in self._recent():
                recent.forget(meta.uid)
            self._readings.pop(JobKey(kind, meta.namespace, meta.name), None)

    def _read(self, key: JobKey, stored: StoredJob) -> Reading:
        """Parse a job once per generation: parsing includes validation, which is expensive."""
        meta = stored.metadata
        version = (meta.uid, meta.generation)
        known = self._readings.get(key)
        if known is None or known[0] != version or not meta.generation:
            known = self._readings[key] = version, self.frameworks[key.kind].read(stored)
        return replace(known[1], job=replace(known[1].job, meta=meta))

    def _status(self, kind: str, stored: StoredJob) -> JobStatus:
        framework = self.frameworks[kind]
        if isinstance(framework, ReadsStatus):
            return framework.read_status(stored)
        return _STATUS.decode(stored.status)

    def _extras(self, uid: str, key: JobKey) -> tuple[list[Extra], list[Extra]]:
        own: list[Extra] = []
        others: list[Extra] = []
        for target in map(Target, self.frameworks[key.kind].kind.makes):
            ours, theirs = _split(uid, self._of_job(self.extras[target], key))
            own += self.recent_extras[target].over(uid, ours)
            others += theirs
        return own, others

    def _of_job(self, informer: Informer[_Owned], key: JobKey) -> list[_Owned]:
        return informer.by_index(_JOB, f"{key.namespace}/{key.name}")

    def _group(self, uid: str, key: JobKey) -> tuple[PodGroup | None, list[PodGroup]]:
        if self.groups is None:
            return None, []
        cached = self.groups.get(key.namespace, key.name)
        own, others = _split(uid, [cached] if cached else [])
        own = self.recent_groups.over(uid, own)
        return (own[0] if own else None), others

    def _lost_nodes(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return the lost nodes that have terminating pods; empty while nodes cannot be read."""
        if not self.nodes.has_synced or self.nodes.problem:
            return frozenset()
        used = {pod.spec.node_name for pod in pods if pod.terminating} - {""}
        found = {name: self.nodes.get(None, name) for name in used}
        return frozenset(name for name, node in found.items() if node is None or node.lost)

    def _key_of_owned(self, item: Object) -> JobKey | None:
        """Return the job of an object: by its controller, else by its labels."""
        meta = item.metadata
        owner = meta.controller
        if owner and owner.kind in self.frameworks:
            return JobKey(owner.kind, meta.namespace, owner.name)
        kind = self._kind_of.get(meta.labels.get(labels.OPERATOR_NAME, ""))
        name = meta.labels.get(labels.JOB_NAME, "")
        return JobKey(kind, meta.namespace, name) if kind and name else None


def _own_fields(stored: StoredJob, job: TrainingJob) -> Manifest:
    if not offers(job.rules, ShowsStatus):
        return {}
    status: Manifest = msgspec.json.decode(stored.status)
    return {name: value for name, value in status.items() if name not in _COMMON_FIELDS}


def _of_kind(target: Target, item: Extra) -> Extra:
    """Add the kind, which the items of a list response lack."""
    return msgspec.structs.replace(item, kind=target)


def _job_of(item: Object) -> Iterable[str]:
    name = item.metadata.labels.get(labels.JOB_NAME)
    return (f"{item.metadata.namespace}/{name}",) if name else ()


def _node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _split(uid: str, items: Iterable[_Owned]) -> tuple[list[_Owned], list[_Owned]]:
    """Separate the objects of a job from objects of other owners with the same job name."""
    own: list[_Owned] = []
    others: list[_Owned] = []
    for item in items:
        owner = item.metadata.controller
        (own if owner and owner.uid == uid else others).append(item)
    return own, others


def _passes(key: JobKey, item: Object) -> bool:
    """Return whether an object that occupies a name will be deleted, or adopted, without user
    action.

    True for objects of a deleted job with the same name, and for orphans. For other owners,
    creation must fail, so that the conflict is reported in the job's status.
    """
    owner = item.metadata.controller
    if owner is None:
        return adoption.is_claimable(item)
    return (owner.kind, owner.name) == (key.kind, key.name)


def _job_listener(
    kind: str, look_at: Callable[[JobKey], None]
) -> Callable[[StoredJob | None, StoredJob | None], None]:
    def changed(old: StoredJob | None, new: StoredJob | None) -> None:
        job = new or old
        if job:
            look_at(JobKey(kind, job.metadata.namespace, job.metadata.name))

    return changed
