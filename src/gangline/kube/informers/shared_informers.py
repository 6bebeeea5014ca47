"""Informers that are shared by all controllers of a process: one copy and one watch per kind."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.indexer import IndexFunction
from gangline.kube.informers.informer import Informer

T = TypeVar("T", bound=Object)

_Scope = tuple[str, str, str | None, str, str, object]


class SharedInformerFactory:
    """Creates one informer per resource, type and selector, and runs all of them."""

    def __init__(self, client: ApiClient, *, resync_s: float | None = None) -> None:
        self._client = client
        self._resync_s = resync_s
        self._informers: dict[_Scope, Informer[Any]] = {}
        self._running = False

    def informer(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        transform: Callable[[T], T] | None = None,
    ) -> Informer[T]:
        """Return the informer of a resource. Call it before ``run``. Indexes of all callers are
        merged.

        Raises:
            RuntimeError: the informers run already, or two callers give different transforms.
        """
        if self._running:
            raise RuntimeError(
                f"the informer of {resource.kind} must be requested before the informers run"
            )
        kind: object = resource.type
        scope = (resource.api_version, resource.plural, namespace, labels, fields, kind)
        informer: Informer[T] | None = self._informers.get(scope)
        if informer is None:
            informer = self._informers[scope] = Informer(
                self._client,
                resource,
                namespace,
                labels=labels,
                fields=fields,
                indexes=indexes,
                transform=transform,
                resync_s=self._resync_s,
            )
            return informer
        if transform is not None and transform is not informer.transform:
            raise RuntimeError(f"there are two transforms for the informer of {resource.kind}")
        for name, index in (indexes or {}).items():
            informer.add_index(name, index)
        return informer

    async def run(self) -> None:
        """Run all informers until cancelled."""
        self._running = True
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def wait_for_sync(self) -> None:
        """Wait until the first list of every informer is complete."""
        for informer in self._informers.values():
            await informer.wait_for_sync()
        # The copies are large and long-lived: exclude them from garbage collection.
        gc.freeze()
