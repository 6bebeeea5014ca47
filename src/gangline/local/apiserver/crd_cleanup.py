"""Deletion of a CustomResourceDefinition: first its objects, then its cleanup finalizer."""

import asyncio
import logging
from typing import Any

from gangline.local.apiserver.crds import CLEANUP, TOPIC, kinds_of
from gangline.local.apiserver.errors import StatusError
from gangline.local.apiserver.history import Event
from gangline.local.apiserver.negotiation import read_json
from gangline.local.apiserver.registry import Json, Kind
from gangline.local.apiserver.removal import Removal
from gangline.local.apiserver.request import Call
from gangline.local.apiserver.store import Store
from gangline.local.apiserver.writing import Writer

log = logging.getLogger(__name__)


class Cleanup:
    """Deletes the objects of definitions that are being deleted."""

    def __init__(self, store: Store, writer: Writer, definitions: Kind) -> None:
        self._store = store
        self._writer = writer
        self._definitions = definitions
        self._running: dict[str, asyncio.Task[None]] = {}
        store.on_change(TOPIC, self._changed)

    def start(self) -> None:
        """Resume cleanups that an earlier server started."""
        for record in self._store.topic(TOPIC).records.values():
            self._begin(read_json(record.body))

    def stop(self) -> None:
        """Cancel running cleanups. The next start resumes them."""
        for task in self._running.values():
            task.cancel()

    def _changed(self, event: Event) -> None:
        self._begin(read_json(event.record.body))

    def _begin(self, definition: Json) -> None:
        meta: Any = definition["metadata"]
        name = meta["name"]
        if "deletionTimestamp" not in meta or CLEANUP not in meta.get("finalizers", []):
            return
        if name not in self._running:
            task = asyncio.get_running_loop().create_task(self._clean(name, definition))
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _clean(self, name: str, definition: Json) -> None:
        kinds = kinds_of(definition)
        if kinds:
            await self._empty(kinds[0])
        request = Call(self._definitions, "update", None, name, "", {})
        try:
            await self._writer.update(request, _without_finalizer)
        except StatusError as error:
            log.warning(
                "cleanup finalizer cannot be removed", extra={"crd": name, "why": str(error)}
            )

    async def _empty(self, kind: Kind) -> None:
        cache = self._store.topic(kind.topic)
        changed = asyncio.Event()
        self._store.on_change(kind.topic, lambda event: changed.set())
        while cache.records:
            changed.clear()
            for key in list(cache.records):
                await self._delete(kind, key)
            if cache.records:  # some objects have finalizers
                await changed.wait()

    async def _delete(self, kind: Kind, key: str) -> None:
        namespace, _, name = key.rpartition("/")
        request = Call(kind, "delete", namespace or None, name, "", {})
        try:
            await self._writer.delete(request, Removal())
        except StatusError as error:
            if error.status.code != 404:
                log.warning("object cannot be deleted", extra={"key": key, "why": str(error)})


def _without_finalizer(definition: Json) -> Json:
    meta = dict(definition["metadata"])
    meta["finalizers"] = [name for name in meta.get("finalizers", []) if name != CLEANUP]
    return {**definition, "metadata": meta}
