"""The observed cluster: one copy of its objects, which all viewers share.

Informers call ``store_...``; views read. A job is built from its stored object, its pods and its
pod groups when it is first read after one of them has changed, so a list of thousands costs nothing
while nothing changes. ``revision`` counts changes; ``wait_for_change`` is for streams: those of a
job's page are not woken by changes of other jobs.

Rights are not kept here: ``Scope`` (``rights``) filters what a viewer sees of it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from gangline.api.core.core import Event
from gangline.api.core.node import Node
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.resource import Resource
from gangline.api.resource_list import GPU, pod_request_for
from gangline.api.volcano.scheduling import PodGroup, Queue
from gangline.api.volcano.topology import HyperNode
from gangline.sdk.jobs import Job, build_job
from gangline.sdk.kinds import JobKind, ListedJob
from gangline.sdk.lean_pods import LISTED_PODS, ListedMeta, ListedPod
from gangline.sdk.nodes import sum_requests


class WatchedMeta(ListedMeta):
    """What lists read of metadata, and the identity by which a copy is kept current."""

    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class WatchedJobMeta(WatchedMeta):
    """Of a job, further what changes with its specification, and its owner."""

    generation: int = 0
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class WatchedPod(ListedPod):
    metadata: WatchedMeta = WatchedMeta()


WATCHED_PODS: Resource[Any] = replace(LISTED_PODS, type=WatchedPod)

WatchedJob: Any = msgspec.defstruct(
    "WatchedJob", [("metadata", WatchedJobMeta, WatchedJobMeta())], bases=(ListedJob,), frozen=True
)
"""A job of any kind with the fields that the pages read."""


def watched_resource(kind: JobKind) -> Resource[Any]:
    """Return the resource of a kind; one with a runtime needs the type of its own."""
    return kind.resource if kind.has_runtime else replace(kind.resource, type=WatchedJob)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    allocated: Mapping[str, int]
    pods: tuple[tuple[WatchedPod, int], ...]
    """The pods that have not ended, with their GPUs, in order of their names."""


JobKey = tuple[str, str, str]
"""Namespace, kind as in lists (``pytorchjob``), and name."""


@dataclass(slots=True)
class JobSnapshot:
    """A stored job with its objects, and the job that was built of them."""

    kind: JobKind
    stored: Any
    revision: int
    """That of the cluster when the job or one of its objects changed last."""
    built: Job | None = None
    shown: Any = None
    """What views have computed of ``built``."""

    @property
    def key(self) -> JobKey:
        return self.stored.metadata.namespace, self.kind.trainer, self.stored.metadata.name

    @property
    def path(self) -> str:
        """Address of its page."""
        return "/jobs/{}/{}/{}".format(*self.key)


@dataclass(slots=True)
class SourceState:
    """The state of the copy of one kind."""

    synced: bool = False
    absent: bool = False
    """True if the cluster does not have the kind, or the server may not read it."""
    problem: str = ""
    """Why the copy is not current; empty while it is."""
    since: datetime | None = None
    """Since when the copy is not current."""


_tables = partial(defaultdict[str, dict[Any, Any]], dict)


@dataclass(slots=True)
class ClusterSnapshot:
    revision: int = 0
    sources: dict[str, SourceState] = field(default_factory=dict)
    """By the plural name of the kind."""
    nodes: dict[str, Node] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    hypernodes: dict[str, HyperNode] = field(default_factory=dict)
    pods: dict[tuple[str, str], WatchedPod] = field(default_factory=dict)
    """By namespace and name."""
    groups: dict[tuple[str, str], PodGroup] = field(default_factory=dict)
    """By namespace and name."""
    events: defaultdict[str, dict[str, Event]] = field(default_factory=_tables)
    """By namespace and name."""
    by_key: dict[JobKey, JobSnapshot] = field(default_factory=dict)
    by_uid: dict[str, JobSnapshot] = field(default_factory=dict)
    _namespaces: dict[JobKind, frozenset[str]] | None = None
    """Those that have jobs, by kind; None until it is computed."""
    _pods_of: defaultdict[str, dict[str, WatchedPod]] = field(default_factory=_tables)
    _groups_of: defaultdict[str, dict[str, PodGroup]] = field(default_factory=_tables)
    _on_node: defaultdict[str, dict[tuple[str, str], WatchedPod]] = field(default_factory=_tables)
    _loads: dict[str, NodeLoad] = field(default_factory=dict)
    """Of nodes whose pods have not changed since it was computed."""
    _waiting: dict[JobKey | None, asyncio.Event] = field(default_factory=dict)
    """Set at the next change of a job; with None, of anything."""

    def revision_of(self, key: JobKey | None) -> int:
        """Return the revision of the last change: of a job (-1 without it), or of the cluster."""
        if key is None:
            return self.revision
        return entry.revision if (entry := self.by_key.get(key)) else -1

    async def wait_for_change(self, revision: int, key: JobKey | None = None) -> None:
        """Wait until ``revision_of(key)`` differs from the given one."""
        while self.revision_of(key) == revision:
            await self._waiting.setdefault(key, asyncio.Event()).wait()

    def note_change(self) -> None:
        self.revision += 1
        self._wake(None)

    def _wake(self, key: JobKey | None) -> None:
        if (event := self._waiting.pop(key, None)) is not None:
            event.set()

    def problem(self) -> SourceState | None:
        """Return the state of a copy that is not current; None if all are."""
        return next((state for state in self.sources.values() if state.problem), None)

    @property
    def has_synced(self) -> bool:
        """Whether every kind was read once, or is known to be absent."""
        return bool(self.sources) and all(
            state.synced or state.absent for state in self.sources.values()
        )

    async def wait_until_synced(self) -> None:
        while not self.has_synced:
            await self.wait_for_change(self.revision)

    def store_job(self, kind: JobKind, old: Any, new: Any) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            entry = self.by_uid.pop(old.metadata.uid, None)
            if entry is not None and self.by_key.get(entry.key) is entry:
                del self.by_key[entry.key]
                self._namespaces = None
                self._wake(entry.key)
        if new is not None:
            entry = JobSnapshot(kind, new, self.revision + 1)
            if entry.key not in self.by_key:
                self._namespaces = None
            self.by_key[entry.key] = self.by_uid[new.metadata.uid] = entry
            self._wake(entry.key)
        self.note_change()

    def store_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        for pod, kept in ((old, None), (new, new)):
            if pod is not None:
                node = pod.spec.node_name
                self._loads.pop(node, None)
                _put(self._on_node[node], (pod.metadata.namespace, pod.metadata.name), kept)
        self._store_owned(self.pods, self._pods_of, old, new)

    def store_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        self._store_owned(self.groups, self._groups_of, old, new)

    def store_event(self, old: Event | None, new: Event | None) -> None:
        if new is not None:
            self.events[new.metadata.namespace][new.metadata.name] = new
            about = new.involved_object
            pod = self.pods.get((new.metadata.namespace, about.name))
            owner = pod.metadata.controller if pod else None
            self._touch(owner.uid if owner else about.uid)
        elif old is not None:
            self.events[old.metadata.namespace].pop(old.metadata.name, None)
        self.note_change()

    def store_node(self, old: Any, new: Any) -> None:
        """Take the change of a node; heartbeats change nothing that is shown."""
        _put(self.nodes, (new or old).metadata.name, new)
        if old is None or new is None or _facts(old) != _facts(new):
            self.note_change()

    def store_named(self, table: dict[str, Any], old: Any, new: Any) -> None:
        """Take the change of an object without a namespace, in one of the tables above."""
        _put(table, (new or old).metadata.name, new)
        self.note_change()

    def _store_owned(
        self, table: dict[Any, Any], by_owner: defaultdict[str, dict[str, Any]], old: Any, new: Any
    ) -> None:
        for item, kept in ((old, None), (new, new)):
            if item is None:
                continue
            meta = item.metadata
            _put(table, (meta.namespace, meta.name), kept)
            if (owner := meta.controller) is not None:
                _put(by_owner[owner.uid], meta.name, kept)
                if not by_owner[owner.uid]:
                    del by_owner[owner.uid]
                self._touch(owner.uid)
        self.note_change()

    def _touch(self, uid: str) -> None:
        if (entry := self.by_uid.get(uid)) is not None:
            entry.built, entry.shown, entry.revision = None, None, self.revision + 1
            self._wake(entry.key)

    def __iter__(self) -> Iterator[JobSnapshot]:
        return iter(list(self.by_key.values()))

    def namespaces(self) -> dict[JobKind, frozenset[str]]:
        if self._namespaces is None:
            by_kind: defaultdict[JobKind, set[str]] = defaultdict(set)
            for entry in self.by_key.values():
                by_kind[entry.kind].add(entry.stored.metadata.namespace)
            self._namespaces = {kind: frozenset(names) for kind, names in by_kind.items()}
        return self._namespaces

    def job(self, entry: JobSnapshot, *, pods: bool = True, groups: bool = True) -> Job:
        """Return a job as lists show it, with its pods and pod groups as far as they may be
        read.
        """
        if pods and groups and entry.built is not None:
            return entry.built
        uid = entry.stored.metadata.uid
        built = build_job(
            entry.kind,
            entry.stored,
            self.pods_of(uid) if pods else [],
            self.groups_of(uid) if groups else [],
        )
        if pods and groups:
            entry.built = built
        return built

    def load(self, node: str) -> NodeLoad:
        if (load := self._loads.get(node)) is None:
            pods = [pod for _, pod in sorted(self._on_node[node].items())]
            pods = [pod for pod in pods if pod.status.phase not in TERMINAL_PHASES]
            counted = tuple((pod, pod_request_for(pod.spec, GPU)) for pod in pods)
            load = self._loads[node] = NodeLoad(sum_requests(pods), counted)
        return load

    def pods_on(self, node: str) -> list[WatchedPod]:
        """Return the pods on a node, also those that have ended."""
        return list(self._on_node[node].values())

    def pods_of(self, uid: str) -> list[WatchedPod]:
        return list(self._pods_of.get(uid, {}).values())

    def groups_of(self, uid: str) -> list[PodGroup]:
        return list(self._groups_of.get(uid, {}).values())


def _put(table: dict[Any, Any], key: object, item: object) -> None:
    """Store an item; None removes what is there."""
    if item is not None:
        table[key] = item
    else:
        table.pop(key, None)


def _facts(node: Node) -> tuple[object, ...]:
    conditions = [(one.type, one.status, one.message) for one in node.status.conditions]
    status = node.status
    return node.spec, node.metadata.labels, conditions, status.allocatable, status.capacity
