"""Namespace controllers: default objects of new namespaces, and the end of terminating ones.

`NamespaceDefaultsController` creates the default service account and the CA bundle that pods rely
on. `NamespaceController` deletes the content of a terminating namespace, then finalizes it.
"""

import contextlib
from typing import Any, TypeVar

from gangline.api.core.core import ConfigMap, Namespace, ServiceAccount
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    ControllerContext,
    DiscoveredKind,
    QueueLoop,
    discover_kinds,
)

FINALIZER = "kubernetes"
REQUEUE_S = 0.5
METHOD_NOT_ALLOWED = 405


class NamespaceController(QueueLoop):
    """Deletes the content of a terminating namespace until nothing is left."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._namespaces = context.informers.informer(NAMESPACES)
        self._controller: Controller[ObjectKey] = Controller(
            "namespaces", self._reconcile, workers=2
        )
        self._namespaces.add_listener(self._changed)

    def _changed(self, _: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._controller.queue.add(object_key(new))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        namespace = self._namespaces.get(None, key.name)
        if namespace is None or namespace.metadata.deletion_timestamp is None:
            return ReconcileDone()
        if FINALIZER not in namespace.spec.finalizers:
            return ReconcileDone()
        kinds = [kind for kind in await discover_kinds(self._client) if kind.namespaced]
        left = sum([await self._empty(kind, key.name) for kind in kinds])
        if left:
            return RequeueAfter(REQUEUE_S)
        await self._finalize(namespace)
        return ReconcileDone()

    async def _empty(self, kind: DiscoveredKind, namespace: str) -> int:
        """Delete all objects of a kind; return how many there were, since some end only after a
        while.
        """
        listing = await self._client.list(kind, namespace)
        if not listing.items:
            return 0
        path = kind.path(namespace)
        try:
            await self._client.request_json(
                "DELETE", path, body={"propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.code != METHOD_NOT_ALLOWED:
                raise
            for item in listing.items:
                with contextlib.suppress(NotFound):
                    await self._client.delete(kind, item.metadata.name, namespace)
        return len(listing.items)

    async def _finalize(self, namespace: Namespace) -> None:
        name = namespace.metadata.name
        path = NAMESPACES.path(name=name, subresource="finalize")
        with contextlib.suppress(NotFound):
            body: dict[str, Any] = await self._client.request_json(
                "GET", NAMESPACES.path(name=name)
            )
            others = [one for one in namespace.spec.finalizers if one != FINALIZER]
            body["spec"] = {"finalizers": others}
            await self._client.request_json("PUT", path, body=body)


DEFAULT_ACCOUNT = "default"
CA_BUNDLE = "kube-root-ca.crt"
TERMINATING = "Terminating"
_T = TypeVar("_T", bound=Object)


class NamespaceDefaultsController(QueueLoop):
    """Creates the objects that pods of a namespace rely on."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._namespaces = context.informers.informer(NAMESPACES)
        self._accounts = context.informers.informer(SERVICE_ACCOUNTS)
        self._controller: Controller[ObjectKey] = Controller("accounts", self._reconcile, workers=2)
        self._namespaces.add_listener(self._namespace_changed)
        self._bundles = context.informers.informer(CONFIG_MAPS, fields=f"metadata.name={CA_BUNDLE}")
        self._accounts.add_listener(self._default_changed)
        self._bundles.add_listener(self._default_changed)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and old is None:
            self._controller.queue.add(object_key(new))

    def _default_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old and old.metadata.name in (DEFAULT_ACCOUNT, CA_BUNDLE):
            self._controller.queue.add(ObjectKey("", old.metadata.namespace))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        namespace = self._namespaces.get(None, key.name)
        if namespace is None or namespace.status.phase == TERMINATING:
            return ReconcileDone()
        with contextlib.suppress(NotFound):  # The namespace was deleted in the meantime.
            if self._accounts.get(key.name, DEFAULT_ACCOUNT) is None:
                account = ServiceAccount(metadata=ObjectMeta(name=DEFAULT_ACCOUNT))
                await self._create(SERVICE_ACCOUNTS, account, key.name)
            authority = self._client.config.certificate_authority
            if authority and self._bundles.get(key.name, CA_BUNDLE) is None:
                bundle = ConfigMap(
                    metadata=ObjectMeta(name=CA_BUNDLE), data={"ca.crt": authority.decode()}
                )
                await self._create(CONFIG_MAPS, bundle, key.name)
        return ReconcileDone()

    async def _create(self, kind: Resource[_T], body: _T, namespace: str) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(kind, body, namespace)
