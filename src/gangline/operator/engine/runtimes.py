"""Caches of the runtimes that jobs name, and of the copies that are stored for jobs.

A job is made from its runtime once. The copy is a ConfigMap of the job, so that a later change of
the runtime, or its deletion, does not reach the job.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gangline.api.jobs.training_runtime import (
    CLUSTER_TRAINING_RUNTIME,
    RUNTIME_COPY_KEY,
    RUNTIME_COPY_LABEL,
    TRAINING_RUNTIME,
    runtime_copy_name,
)
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.operator.model.framework import RuntimeCopy


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
                client, _raw(TRAINING_RUNTIMES), namespace, transform=_detach
            ),
            CLUSTER_TRAINING_RUNTIME: Informer(
                client, _raw(CLUSTER_TRAINING_RUNTIMES), transform=_detach
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
        return RuntimeCopy(_manifest(runtime, kind), version, is_stored=False)


def _raw(resource: Resource[Any]) -> Resource[RawRuntime]:
    return Resource(
        RawRuntime,
        resource.group,
        resource.version,
        resource.plural,
        resource.kind,
        namespaced=resource.namespaced,
    )


def _detach(runtime: RawRuntime) -> RawRuntime:
    """Copy a runtime out of its watch message, which otherwise stays in memory with it."""
    return msgspec.structs.replace(runtime, spec=msgspec.Raw(bytes(runtime.spec)))


def _manifest(runtime: RawRuntime, kind: str) -> bytes:
    """Return a runtime as it is stored for a job: without what the server adds."""
    meta = runtime.metadata
    labels = {"labels": meta.labels} if meta.labels else {}
    return msgspec.json.encode(
        {
            "apiVersion": TRAINING_RUNTIMES.api_version,
            "kind": kind,
            "metadata": {"name": meta.name, **labels},
            "spec": runtime.spec,
        }
    )
