"""Deletion of a CustomResourceDefinition: first its objects, then its cleanup finalizer."""

import asyncio
import logging
from typing import Any

from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.crds import CLEANUP_FINALIZER, CRD_STORAGE_NAME, served_kinds
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent
from gangline.local.apiserver.verbs.delete import DeletionRequest
from gangline.local.apiserver.verbs.write import WritePath

log = logging.getLogger(__name__)


class CrdFinalizer:
    """Deletes the objects of definitions that are being deleted."""

    def __init__(self, store: ObjectStore, writer: WritePath, definitions: ServedKind) -> None:
        self._store = store
        self._writer = writer
        self._definitions = definitions
        self._running: dict[str, asyncio.Task[None]] = {}
        store.add_listener(CRD_STORAGE_NAME, self._on_change)

    def start(self) -> None:
        """Resume cleanups that an earlier server started."""
        for record in self._store.cache(CRD_STORAGE_NAME).records.values():
            self._start_cleanup(read_json(record.body))

    def stop(self) -> None:
        """Cancel running cleanups. The next start resumes them."""
        for task in self._running.values():
            task.cancel()

    def _on_change(self, event: CacheEvent) -> None:
        self._start_cleanup(read_json(event.record.body))

    def _start_cleanup(self, definition: Json) -> None:
        meta: Any = definition["metadata"]
        name = meta["name"]
        if "deletionTimestamp" not in meta or CLEANUP_FINALIZER not in meta.get("finalizers", []):
            return
        if name not in self._running:
            task = asyncio.get_running_loop().create_task(self._finalize(name, definition))
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _finalize(self, name: str, definition: Json) -> None:
        kinds = served_kinds(definition)
        if kinds:
            await self._delete_objects(kinds[0])
        request = ApiRequest(self._definitions, "update", None, name, "", {})
        try:
            await self._writer.update(request, _without_finalizer)
        except StatusError as error:
            log.warning(
                "cleanup finalizer cannot be removed", extra={"crd": name, "why": str(error)}
            )

    async def _delete_objects(self, kind: ServedKind) -> None:
        cache = self._store.cache(kind.storage_name)
        changed = asyncio.Event()
        self._store.add_listener(kind.storage_name, lambda event: changed.set())
        while cache.records:
            changed.clear()
            for key in list(cache.records):
                await self._delete(kind, key)
            if cache.records:  # some objects have finalizers
                await changed.wait()

    async def _delete(self, kind: ServedKind, key: str) -> None:
        namespace, _, name = key.rpartition("/")
        request = ApiRequest(kind, "delete", namespace or None, name, "", {})
        try:
            await self._writer.delete(request, DeletionRequest())
        except StatusError as error:
            if error.status.code != 404:
                log.warning("object cannot be deleted", extra={"key": key, "why": str(error)})


def _without_finalizer(definition: Json) -> Json:
    meta = dict(definition["metadata"])
    meta["finalizers"] = [name for name in meta.get("finalizers", []) if name != CLEANUP_FINALIZER]
    return {**definition, "metadata": meta}
