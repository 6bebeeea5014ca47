"""What controllers of pods share: creation in growing batches, expectations, adoption.

Expectations are own writes that the watch has not shown yet, so that they are not repeated.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.meta.objects import LabelSelector, Object, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.local.controllers.context import namespace_ends, patch_metadata

K = TypeVar("K", bound=Hashable)
EXPECTATIONS_TIMEOUT_S = 30.0


class Expectations(Generic[K]):
    """Pods created or deleted for each key, until the watch has shown the change."""

    def __init__(self) -> None:
        self._created: dict[K, dict[str, tuple[Pod, float]]] = defaultdict(dict)
        self._deleted: dict[K, dict[str, float]] = defaultdict(dict)

    def expect_creation(self, key: K, pod: Pod) -> None:
        self._created[key][pod.metadata.uid] = (pod, _clock())

    def expect_deletion(self, key: K, pod: Pod) -> None:
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


async def claim_objects(
    client: ApiClient,
    kind: Resource[T],
    objects: Iterable[T],
    owner: Object,
    selector_and_reference: tuple[LabelSelector, dict[str, Any]],
    *,
    finalizer: str = "",
) -> bool:
    """Adopt matching objects without a controller, and release owned ones that do not match.

    An owner that is being deleted does neither: what it leaves is for the garbage collector. A
    released object also loses ``finalizer``. Returns True if something was written; the watch will
    show it.

    Raises:
        Conflict: an object has changed since it was read.
    """
    if owner.metadata.deletion_timestamp is not None:
        return False
    selector, reference = selector_from_object(selector_and_reference[0]), selector_and_reference[1]
    changed = False
    for obj in objects:
        meta = obj.metadata
        matches = selector.matches(meta.labels)
        if meta.deletion_timestamp is not None or matches == (meta.controller is not None):
            continue
        owners = meta.owner_references
        if matches:
            references = [*_encode(owners), reference]
            await patch_metadata(client, kind, obj, ownerReferences=references)
        elif meta.controller is not None and meta.controller.uid == owner.metadata.uid:
            rest = [one for one in owners if one.uid != owner.metadata.uid]
            left = [name for name in meta.finalizers if name != finalizer]
            await patch_metadata(
                client, kind, obj, ownerReferences=_encode(rest), finalizers=left or None
            )
        else:
            continue
        changed = True
    return changed


def _encode(owners: Sequence[OwnerReference]) -> list[dict[str, Any]]:
    return msgspec.to_builtins(owners)  # type: ignore[no-any-return]


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
            if isinstance(made, ApiError) and namespace_ends(made):
                return
            if isinstance(made, BaseException):
                errors.append(made)
            else:
                on_created(made)
        if errors:
            raise errors[0]
        missing, batch = missing[batch:], batch * 2
