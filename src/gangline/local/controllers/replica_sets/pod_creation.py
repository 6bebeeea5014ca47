"""What controllers of pods share: creation in growing batches, expectations, adoption.

Expectations are own writes that the watch has not shown yet, so that they are not repeated.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.meta.objects import Object, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import NotFound

K = TypeVar("K", bound=Hashable)
EXPECTATIONS_TIMEOUT_S = 30.0


class Expectations(Generic[K]):
    """Pods created or deleted for each key, until the watch has shown the change."""

    def __init__(self) -> None:
        self._created: dict[K, dict[str, tuple[Pod, float]]] = defaultdict(dict)
        self._deleted: dict[K, dict[str, float]] = defaultdict(dict)

    def expect_creation(self, key: K, pod: Pod) -> None:
        """Record a pod that the server has just created."""
        self._created[key][pod.metadata.uid] = (pod, _clock())

    def expect_deletion(self, key: K, pod: Pod) -> None:
        """Record a pod whose deletion was requested."""
        self._deleted[key][pod.metadata.uid] = _clock()

    def apply(self, key: K, seen: Sequence[Pod]) -> list[Pod]:
        """Return the pods as the watch will show them once it has caught up."""
        expired = _clock() - EXPECTATIONS_TIMEOUT_S
        uids = {pod.metadata.uid for pod in seen}
        created = self._created.pop(key, {})
        waiting = {u: e for u, e in created.items() if u not in uids and e[1] > expired}
        if waiting:
            self._created[key] = waiting
        deleted = self._deleted.pop(key, {})
        ending = {u: since for u, since in deleted.items() if u in uids and since > expired}
        if ending:
            self._deleted[key] = ending
        remaining = [pod for pod in seen if pod.metadata.uid not in ending]
        return remaining + [pod for pod, _ in waiting.values()]

    def forget(self, key: K) -> None:
        self._created.pop(key, None)
        self._deleted.pop(key, None)


def _clock() -> float:
    return asyncio.get_running_loop().time()


T = TypeVar("T", bound=Object)


async def adopt_object(
    client: ApiClient, kind: Resource[T], orphan: T, owner: dict[str, Any]
) -> None:
    """Make ``owner`` (a reference) the controller of an object that has none. Raises Conflict: the
    object has changed since it was read.
    """
    references = [*msgspec.to_builtins(orphan.metadata.owner_references), owner]
    await _set_owners(client, kind, orphan, references)


async def release_object(client: ApiClient, kind: Resource[T], held: T, owner_uid: str) -> None:
    """Remove the reference to an owner from an object. Raises Conflict: the object has changed
    since it was read.
    """
    remaining: list[OwnerReference] = [
        owner for owner in held.metadata.owner_references if owner.uid != owner_uid
    ]
    await _set_owners(client, kind, held, msgspec.to_builtins(remaining))


async def _set_owners(
    client: ApiClient, kind: Resource[T], owned: T, references: list[dict[str, Any]]
) -> None:
    meta = owned.metadata
    patch = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": references,
        }
    }
    with contextlib.suppress(NotFound):
        await client.patch(kind, meta.name, patch, meta.namespace, kind=PatchKind.MERGE)


async def create_pods(
    client: ApiClient,
    namespace: str,
    manifests: Sequence[Mapping[str, Any]],
    on_created: Callable[[Pod], None],
) -> None:
    """Create pods in growing batches, as kube-controller-manager does (slow start).

    If the server refuses a pod, it is refused once and not a hundred times. Raises the first error
    of a batch, after all creations of that batch were reported to ``on_created``.
    """
    missing, batch = manifests, 1
    while missing:
        creations = [client.create(PODS, body, namespace) for body in missing[:batch]]
        errors: list[BaseException] = []
        for made in await asyncio.gather(*creations, return_exceptions=True):
            if isinstance(made, BaseException):
                errors.append(made)
            else:
                on_created(made)
        if errors:
            raise errors[0]
        missing, batch = missing[batch:], batch * 2
