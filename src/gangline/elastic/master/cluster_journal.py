"""The journal in a ConfigMap: the complete state, compressed, written shortly after each change.

Replies do not wait for the API server: agents repeat what a killed master had not written yet. The
resourceVersion of the object is a fencing token: a master that finds a newer version was replaced
by another one, and ends. The job's timeline is published as Kubernetes events about the ElasticJob.
"""

import asyncio
import base64
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec

from gangline.api.core.reference import ObjectReference
from gangline.api.jobs.elastic import GROUP, VERSION
from gangline.api.meta.resource import Resource
from gangline.elastic.master.journal import Journal, JournalError
from gangline.elastic.protocol.messages import JobEvent
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import AlreadyExists, ApiError, Conflict, NotFound

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
_WARNINGS = frozenset(
    {"NodeLost", "WorkersFailed", "RendezvousFailed", "JournalFailed", "CheckpointNotSaved"}
)
_UNREPORTED = frozenset({"WorldBroken"})
"""Reasons that only accompany another event, which is published."""

log = logging.getLogger(__name__)

COMPONENT = "gangline-master"
WRITE_DELAY_S = 0.5
"""Changes are collected for this time before they are written."""
MAX_RETRY_PAUSE_S = 5.0
"""Longest pause between retries while the API server does not answer."""
MAX_CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes refuses ConfigMaps of more than a mebibyte."""
_KEY = "state"


def job_reference(environment: Mapping[str, str], namespace: str) -> ObjectReference | None:
    """Return the ElasticJob of this master, from the operator's variables; None without them."""
    name, uid = environment.get("ELASTIC_JOB_NAME"), environment.get("JOB_UID")
    if not name or not uid:
        return None
    api_version = f"{GROUP}/{VERSION}"
    return ObjectReference(
        kind="ElasticJob", api_version=api_version, namespace=namespace, name=name, uid=uid
    )


def record_job_event(recorder: EventRecorder, job: ObjectReference, event: JobEvent) -> None:
    """Publish the event, unless its reason only accompanies another one."""
    if event.reason in _UNREPORTED:
        return
    where = "" if event.node_id is None else f"node {event.node_id}: "
    type_ = WARNING if event.reason in _WARNINGS else NORMAL
    recorder.event(job, type_, event.reason, f"{where}{event.message}".rstrip(": "))


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Stored(msgspec.Struct, rename="camel"):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    binary_data: dict[str, str] = {}


_CONFIG_MAPS = Resource(_Stored, "", "v1", "configmaps", "ConfigMap")


class ClusterJournal(Journal):
    """A journal in an existing ConfigMap; created by the module's context manager."""

    resource = _CONFIG_MAPS

    def __init__(self, client: ApiClient, namespace: str, name: str, stored: _Stored) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._version = stored.metadata.resource_version
        self._content = stored.binary_data.get(_KEY, "")
        self._snapshot: Callable[[], bytes] | None = None
        self._summary: Callable[[], dict[str, str]] = dict
        self._changed = asyncio.Event()
        self.publisher: Callable[[JobEvent], None] = lambda event: None

    def read(self) -> tuple[bytes, list[bytes]]:
        """Return the stored state, without records.

        Raises JournalError: the content is no state of a master.
        """
        try:
            return (zlib.decompress(base64.b64decode(self._content)) if self._content else b""), []
        except (ValueError, zlib.error) as error:
            place = f"{self._namespace}/{self._name}"
            raise JournalError(
                f"the ConfigMap {place} holds no state of a master: {error}"
            ) from error

    def set_state_source(
        self, snapshot: Callable[[], bytes], summary: Callable[[], dict[str, str]]
    ) -> None:
        self._snapshot, self._summary = snapshot, summary

    def append(self, record: bytes) -> None:
        del record
        self._changed.set()

    def publish_event(self, event: JobEvent) -> None:
        self.publisher(event)

    async def close(self) -> None:
        if self._changed.is_set():
            with suppress(ApiError):
                await self._write()

    async def run_writer(self, on_fenced: Callable[[], None]) -> None:
        pause = WRITE_DELAY_S
        while True:
            await self._changed.wait()
            await asyncio.sleep(pause)
            try:
                await self._write()
                pause = WRITE_DELAY_S
            except Conflict:
                log.error("another master has replaced this one", extra={"journal": self._name})
                self._changed.clear()
                on_fenced()
                return
            except ApiError as error:
                log.warning("the state could not be written yet", extra={"reason": str(error)})
                pause = min(pause * 2, MAX_RETRY_PAUSE_S)

    async def _write(self) -> None:
        if self._snapshot is None:
            return
        content = base64.b64encode(zlib.compress(self._snapshot(), 1)).decode()
        if len(content) > MAX_CONFIG_MAP_BYTES:
            self._changed.clear()
            log.error("the state is too large for a ConfigMap", extra={"bytes": len(content)})
            return
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": self._version},
            "binaryData": {_KEY: content},
            "data": self._summary(),
        }
        self._changed.clear()
        try:
            stored = await self._client.patch(_CONFIG_MAPS, self._name, patch, self._namespace)
        except NotFound:
            stored = await _create(self._client, self._namespace, self._name, {_KEY: content})
        except ApiError:
            self._changed.set()
            raise
        self._version = stored.metadata.resource_version


async def _create(client: ApiClient, namespace: str, name: str, content: dict[str, str]) -> _Stored:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "binaryData": content,
    }
    return await client.create(_CONFIG_MAPS, body, namespace)


async def open_cluster_journal(client: ApiClient, namespace: str, name: str) -> ClusterJournal:
    """Read the ConfigMap, creating it if it does not exist.

    Raises JournalError: the API server does not return it; the message says why.
    """
    try:
        try:
            stored = await client.get(_CONFIG_MAPS, name, namespace)
        except NotFound:
            with suppress(AlreadyExists):
                await _create(client, namespace, name, {})
            stored = await client.get(_CONFIG_MAPS, name, namespace)
    except ApiError as error:
        place = f"{namespace}/{name}"
        raise JournalError(f"the ConfigMap {place} cannot be used: {error}") from error
    return ClusterJournal(client, namespace, name, stored)


@asynccontextmanager
async def cluster_journal(
    namespace: str, name: str, on_fenced: Callable[[], None], job: ObjectReference | None = None
) -> AsyncIterator[ClusterJournal]:
    """Open the journal in a ConfigMap, creating it if it does not exist.

    Args:
        on_fenced: called when another master has written: this one must end.
        job: the object that events refer to; without it none are published.

    Raises:
        JournalError: the API server does not return it; the message says why.
    """
    async with (
        ApiClient(load_config(), COMPONENT) as client,
        EventRecorder(client, COMPONENT) as recorder,
    ):
        journal = await open_cluster_journal(client, namespace, name)
        if job is not None:
            journal.publisher = partial(record_job_event, recorder, job)
        keeper = asyncio.create_task(journal.run_writer(on_fenced), name="journal")
        try:
            yield journal
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
