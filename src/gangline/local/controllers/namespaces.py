"""Namespace controllers: default objects of new namespaces, and the end of terminating ones.

`NamespaceDefaultsController` creates the default service account and the CA bundle that pods rely
on. `NamespaceController` deletes the content of a terminating namespace, then finalizes it.
"""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from gangline.api.core.core import ConfigMap, Namespace, ServiceAccount
from gangline.api.meta.conditions import FALSE, TRUE, set_condition
from gangline.api.meta.objects import Condition, Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    ControllerContext,
    DiscoveredKind,
    QueueLoop,
    discover_kinds,
    patch_status,
)

FINALIZER = "kubernetes"
REQUEUE_S = 0.5
METHOD_NOT_ALLOWED = 405
CONDITIONS = (
    (
        "NamespaceDeletionContentFailure",
        ("ContentDeletionFailed", "Failed to delete some content: "),
        ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
    ),
    (
        "NamespaceContentRemaining",
        ("SomeResourcesRemain", "Some resources are remaining: "),
        ("ContentRemoved", "All content successfully removed"),
    ),
    (
        "NamespaceFinalizersRemaining",
        ("SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "),
        ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
    ),
)
"""Types, and reasons and texts of true and of false ones, as in Kubernetes: scripts read them."""


@dataclass(slots=True)
class RemainingContent:
    """What a terminating namespace still contains."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of objects by resource, as in ``pods.`` and ``jobs.batch``."""
    finalizers: Counter[str] = field(default_factory=Counter)
    """Number of objects that have a finalizer, by finalizer."""
    failures: list[str] = field(default_factory=list)
    """Errors of deletions, by resource."""

    def add(self, kind: DiscoveredKind, objects: Sequence[Object]) -> None:
        if objects:
            self.counts[f"{kind.plural}.{kind.group}"] += len(objects)
        for obj in objects:
            self.finalizers.update(obj.metadata.finalizers)

    def is_empty(self) -> bool:
        return not self.counts and not self.failures

    def conditions(self) -> list[Condition]:
        objects = _listing(self.counts, "{} has {} resource instances")
        held = _listing(self.finalizers, "{} in {} resource instances")
        details = ("; ".join(self.failures), objects, held)
        return [
            Condition(type=type_, status=TRUE, reason=problem[0], message=problem[1] + detail)
            if detail
            else Condition(type=type_, status=FALSE, reason=otherwise[0], message=otherwise[1])
            for (type_, problem, otherwise), detail in zip(CONDITIONS, details, strict=True)
        ]


def _listing(counts: Counter[str], entry: str) -> str:
    return ", ".join(entry.format(name, count) for name, count in sorted(counts.items()))


class NamespaceController(QueueLoop):
    """Deletes the content of a terminating namespace until nothing is left."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._namespaces = context.informers.informer(NAMESPACES)
        self._queue = self._add_queue("namespaces", self._reconcile, workers=2)
        self._namespaces.add_listener(self._changed)

    def _changed(self, _: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._queue.add(object_key(new))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        namespace = self._namespaces.get(None, key.name)
        if namespace is None or namespace.metadata.deletion_timestamp is None:
            return None
        if FINALIZER not in namespace.spec.finalizers:
            return None
        remaining = await self._delete_content(key.name)
        if remaining.is_empty():
            await self._finalize(namespace)
            return None
        await self._report(namespace, remaining)
        return REQUEUE_S

    async def _delete_content(self, namespace: str) -> RemainingContent:
        """Delete the pods, and when they are gone the rest: a pod that saves its state at its end
        reads Secrets and claims until then.
        """
        remaining = RemainingContent()
        kinds = [kind for kind in await discover_kinds(self._client) if kind.namespaced]
        pods = [kind for kind in kinds if kind.path() == PODS.path()]
        for part in (pods, [kind for kind in kinds if kind not in pods]):
            for kind in part:
                try:
                    remaining.add(kind, await self._empty(kind, namespace))
                except ApiError as error:  # other kinds do not wait for this one
                    remaining.failures.append(f"{kind.plural}: {error}")
            if not remaining.is_empty():
                break
        return remaining

    async def _empty(self, kind: DiscoveredKind, namespace: str) -> list[Object]:
        """Delete all objects of a kind; return those that there were, since some end only after a
        while.
        """
        listing = await self._client.list(kind, namespace)
        if not listing.items:
            return []
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
        return listing.items

    async def _report(self, namespace: Namespace, remaining: RemainingContent) -> None:
        now, conditions = datetime.now(UTC), namespace.status.conditions
        for condition in remaining.conditions():
            conditions = set_condition(conditions, condition, now)
        if conditions == namespace.status.conditions:
            return
        change = {"status": {"conditions": msgspec.to_builtins(conditions)}}
        await patch_status(self._client, NAMESPACES, namespace, change)

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
        super().__init__(context)
        self._namespaces = context.informers.informer(NAMESPACES)
        self._accounts = context.informers.informer(SERVICE_ACCOUNTS)
        self._queue = self._add_queue("accounts", self._reconcile, workers=2)
        self._namespaces.add_listener(self._namespace_changed)
        self._bundles = context.informers.informer(CONFIG_MAPS, fields=f"metadata.name={CA_BUNDLE}")
        self._accounts.add_listener(self._default_changed)
        self._bundles.add_listener(self._default_changed)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and old is None:
            self._queue.add(object_key(new))

    def _default_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and old.metadata.name in (DEFAULT_ACCOUNT, CA_BUNDLE):
            self._queue.add(ObjectKey("", old.metadata.namespace))

    async def _reconcile(self, key: ObjectKey) -> None:
        namespace = self._namespaces.get(None, key.name)
        if namespace is None or namespace.status.phase == TERMINATING:
            return
        with contextlib.suppress(NotFound):  # The namespace was deleted in the meantime.
            data = {"ca.crt": (self._client.config.certificate_authority or b"").decode()}
            present = self._bundles.get(key.name, CA_BUNDLE)
            if present is None:
                bundle = ConfigMap(metadata=ObjectMeta(name=CA_BUNDLE), data=data)
                await self._create(CONFIG_MAPS, bundle, key.name)
            elif present.data != {**present.data, **data}:
                await self._client.patch(CONFIG_MAPS, CA_BUNDLE, {"data": data}, key.name)
            # Last: clients wait for the account before they create pods, which mount both.
            if self._accounts.get(key.name, DEFAULT_ACCOUNT) is None:
                account = ServiceAccount(metadata=ObjectMeta(name=DEFAULT_ACCOUNT))
                await self._create(SERVICE_ACCOUNTS, account, key.name)

    async def _create(self, kind: Resource[_T], body: _T, namespace: str) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(kind, body, namespace)
