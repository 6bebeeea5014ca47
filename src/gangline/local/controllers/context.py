"""What every controller gets: a client, shared informers, an event recorder, settings, indexes.

Also discovery of the kinds that the API server serves now, which custom resources change.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.meta.objects import Condition, Object
from gangline.api.meta.resource import Resource
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
    WorkQueue,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.informers.informer import (
    Informer,
    ObjectKey,
    SharedInformerFactory,
    object_key,
)

REQUIRED_VERBS = frozenset({"list", "watch", "delete"})
IGNORED_RESOURCES = frozenset({("", "events"), ("events.k8s.io", "events")})
"""These have no owners, are many and short-lived."""

DiscoveredKind = Resource[Object]
T = TypeVar("T", bound=Object)
K = TypeVar("K", bound=Hashable)


async def discover_kinds(client: ApiClient) -> list[DiscoveredKind]:
    """List the kinds that can be listed, watched and deleted, each in the first of its versions."""
    groups = (await client.request_json("GET", "/apis")).get("groups") or []
    versions = [listed["groupVersion"] for group in groups for listed in group["versions"]]
    paths = ["/api/v1", *(f"/apis/{version}" for version in versions)]
    documents = await asyncio.gather(*(client.request_json("GET", path) for path in paths))
    kinds: dict[tuple[str, str], DiscoveredKind] = {}
    for document in documents:
        for kind in parse_kinds(document):
            kinds.setdefault((kind.group, kind.plural), kind)
    return list(kinds.values())


def parse_kinds(document: dict[str, Any]) -> Iterable[DiscoveredKind]:
    """Parse the kinds of one group and version from its discovery document."""
    group, _, version = document["groupVersion"].rpartition("/")
    for entry in document.get("resources") or []:
        if "/" in entry["name"] or (group, entry["name"]) in IGNORED_RESOURCES:
            continue
        if set(entry.get("verbs") or ()) >= REQUIRED_VERBS:
            yield Resource(
                Object, group, version, entry["name"], entry["kind"], bool(entry["namespaced"])
            )


BY_NAMESPACE = "namespace"
BY_OWNER = "owner"
"""Names of informer indexes."""


def shared_informers(client: ApiClient) -> SharedInformerFactory:
    """Return the informers of all components of this process.

    The copies of all pods are most of its memory, so of each pod only what these components read
    is retained.
    """
    informers = SharedInformerFactory(client)
    informers.informer(PODS, transform=_reduce_pod)
    return informers


def _reduce_pod(pod: Pod) -> Pod:
    """Remove the programs of the containers, and the volumes without claims."""
    spec = pod.spec
    spec = msgspec.structs.replace(
        spec,
        containers=_reduce_containers(spec.containers),
        init_containers=_reduce_containers(spec.init_containers),
        volumes=[v for v in spec.volumes if v.persistent_volume_claim or v.ephemeral],
    )
    return msgspec.structs.replace(pod, spec=spec)


def _reduce_containers(containers: Iterable[Container]) -> list[Container]:
    return [Container(name=c.name, ports=c.ports, resources=c.resources) for c in containers]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    volumes: Path
    """The parent folder of new volumes, which get one folder each."""

    node_silence_s: float = 40.0
    """Seconds without a heartbeat after which a node counts as lost; Kubernetes' default. Tests and
    demos lower it. Below three heartbeats, busy nodes are misjudged."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    client: ApiClient
    informers: SharedInformerFactory
    recorder: EventRecorder
    settings: ControllerSettings


class QueueLoop:
    """A controller with queues of keys, each of which has workers.

    Its constructor requests informers; ``run`` starts after they have synced.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._recorder = context.client, context.recorder
        self._controllers: list[Controller[Any]] = []

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for controller in self._controllers:
                tasks.create_task(controller.run())

    def _add_queue(
        self, name: str, reconcile: Callable[[K], Awaitable[float | None]], workers: int = 4
    ) -> WorkQueue[K]:
        """Add a queue.

        Args:
            reconcile: returns in how many seconds a key is due again; None: when something changes.
        """

        async def one_pass(key: K) -> ReconcileResult:
            delay_s = await reconcile(key)
            return ReconcileDone() if delay_s is None else RequeueAfter(delay_s)

        controller = Controller(name, one_pass, workers=workers)
        self._controllers.append(controller)
        return controller.queue


def current_time() -> datetime:
    """The current time without fractions of a second, as in API objects."""
    return datetime.now(UTC).replace(microsecond=0)


def enqueue_changes(
    queue: WorkQueue[ObjectKey],
) -> Callable[[Object | None, Object | None], None]:
    """Return a listener that adds each changed object to a queue."""

    def changed(old: Object | None, new: Object | None) -> None:
        if (object_ := new or old) is not None:
            queue.add(object_key(object_))

    return changed


def enqueue_owners(
    queue: WorkQueue[ObjectKey], kind: Resource[Any], owners: Informer[Any]
) -> Callable[[Object | None, Object | None], None]:
    """Return a listener that adds the owners of this kind of each changed object to a queue, and of
    one without an owner those that select it.

    Args:
        owners: has the index `BY_NAMESPACE`.
    """

    def changed(old: Object | None, new: Object | None) -> None:
        for obj in (old, new):
            owner = obj.metadata.controller if obj is not None else None
            if obj is not None and owner is not None and owner.kind == kind.kind:
                queue.add(ObjectKey(obj.metadata.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for candidate in owners.by_index(BY_NAMESPACE, new.metadata.namespace):
                if selector_from_object(candidate.spec.selector).matches(new.metadata.labels):
                    queue.add(object_key(candidate))

    return changed


def seconds_until(due: datetime | None) -> float | None:
    """Return the delay of a key that is due at a time; None: when something changes."""
    return None if due is None else max(0.1, (due - current_time()).total_seconds())


def namespace_of(obj: Object) -> Iterable[str]:
    """The namespace of an object, for the index `BY_NAMESPACE`."""
    return [obj.metadata.namespace]


def namespace_ends(error: ApiError) -> bool:
    """Return whether something was refused because its namespace is being deleted."""
    return any(cause.reason == "NamespaceTerminating" for cause in error.causes)


async def patch_status(
    client: ApiClient, kind: Resource[T], object_: T, patch: dict[str, Any]
) -> None:
    """Write a part of the status by a merge patch; does nothing if the object was deleted."""
    meta = object_.metadata
    with contextlib.suppress(NotFound):
        await client.patch(kind, meta.name, patch, meta.namespace, subresource="status")


def complete_status(status: msgspec.Struct) -> dict[str, Any]:
    """Encode a status for a merge patch: a field with its default value is 0 or null, since a
    missing one would keep what is stored.
    """
    encoded = msgspec.to_builtins(status)
    return {
        field.encode_name: encoded.get(field.encode_name, 0 if field.default == 0 else None)
        for field in msgspec.structs.fields(status)
    }


async def patch_metadata(
    client: ApiClient, kind: Resource[T], object_: T, **fields: object
) -> None:
    """Replace fields of the metadata; does nothing if the object was deleted. Raises Conflict: it
    has changed since it was read.
    """
    meta = object_.metadata
    metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, **fields}
    with contextlib.suppress(NotFound):
        await client.patch(kind, meta.name, {"metadata": metadata}, meta.namespace or None)


async def evict_pod(context: ControllerContext, pod: Pod, evicted_by: str, message: str) -> None:
    """Delete a pod, with a condition and an event that say why. Raises Conflict: it has changed."""
    meta = pod.metadata
    await mark_disrupted(context.client, pod, f"DeletionBy{evicted_by}", message)
    await context.client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
    context.recorder.event(pod, "Normal", f"{evicted_by}Eviction", message)


async def mark_disrupted(
    client: ApiClient, pod: Pod, reason: str, message: str, **status: str
) -> None:
    """Write the DisruptionTarget condition: the reason for the deletion that follows.

    Args:
        status: further fields of the status.

    Raises:
        Conflict: the pod has changed.
    """
    mark = Condition(
        type="DisruptionTarget",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=current_time(),
    )
    conditions = [*(one for one in pod.status.conditions if one.type != mark.type), mark]
    patch = {
        "metadata": {"resourceVersion": pod.metadata.resource_version},
        "status": {"conditions": msgspec.to_builtins(conditions), **status},
    }
    await patch_status(client, PODS, pod, patch)


def owner_uids(owned: Object) -> Iterable[str]:
    """The uid of the object's controller, for the index `BY_OWNER`."""
    controller = owned.metadata.controller
    return [controller.uid] if controller else []
