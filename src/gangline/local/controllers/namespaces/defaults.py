"""Default service account and CA bundle of each namespace, and deletion of old events."""

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta
from typing import TypeVar

from gangline.api.core.core import ConfigMap, Namespace, ServiceAccount
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, current_time

log = logging.getLogger(__name__)

DEFAULT_ACCOUNT = "default"
CA_BUNDLE = "kube-root-ca.crt"
TERMINATING = "Terminating"
_T = TypeVar("_T", bound=Object)


class NamespaceDefaultsController:
    """Creates the objects that pods of a namespace rely on."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._namespaces = context.informers.informer(NAMESPACES)
        self._accounts = context.informers.informer(SERVICE_ACCOUNTS)
        self._controller: Controller[ObjectKey] = Controller("accounts", self._reconcile, workers=2)
        self._namespaces.add_listener(self._namespace_changed)
        self._bundles = context.informers.informer(CONFIG_MAPS, fields=f"metadata.name={CA_BUNDLE}")
        self._accounts.add_listener(self._account_changed)
        self._bundles.add_listener(self._bundle_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and old is None:
            self._controller.queue.add(object_key(new))

    def _account_changed(self, old: ServiceAccount | None, new: ServiceAccount | None) -> None:
        if new is None and old is not None and old.metadata.name == DEFAULT_ACCOUNT:
            self._controller.queue.add(ObjectKey("", old.metadata.namespace))

    def _bundle_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None and old is not None:
            self._controller.queue.add(ObjectKey("", old.metadata.namespace))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        namespace = self._namespaces.get(None, key.name)
        if namespace is None or namespace.status.phase == TERMINATING:
            return ReconcileDone()
        with contextlib.suppress(NotFound):  # The namespace was deleted in the meantime.
            if self._accounts.get(key.name, DEFAULT_ACCOUNT) is None:
                account = ServiceAccount(metadata=ObjectMeta(name=DEFAULT_ACCOUNT))
                await self._make(SERVICE_ACCOUNTS, account, key.name)
            authority = self._client.config.certificate_authority
            if authority and self._bundles.get(key.name, CA_BUNDLE) is None:
                bundle = ConfigMap(
                    metadata=ObjectMeta(name=CA_BUNDLE), data={"ca.crt": authority.decode()}
                )
                await self._make(CONFIG_MAPS, bundle, key.name)
        return ReconcileDone()

    async def _make(self, kind: Resource[_T], body: _T, namespace: str) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(kind, body, namespace)


class _EventTimes(Object):
    """The time stamps of an event."""

    last_timestamp: datetime | None = None
    event_time: datetime | None = None


EVENT_TIMES: Resource[_EventTimes] = Resource(_EventTimes, "", "v1", "events", "Event")


class EventTtlController:
    """Deletes events that are older than their time to live."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._kept = timedelta(seconds=context.settings.event_ttl_s)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._kept.total_seconds() / 2))
            try:
                await self._expire()
            except ApiError as error:
                log.debug("events not expired", extra={"error": str(error)})

    async def _expire(self) -> None:
        oldest = current_time() - self._kept
        for event in (await self._client.list(EVENT_TIMES)).items:
            latest = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
            if latest is not None and latest < oldest:
                with contextlib.suppress(NotFound):
                    await self._client.delete(
                        EVENT_TIMES, event.metadata.name, event.metadata.namespace
                    )
