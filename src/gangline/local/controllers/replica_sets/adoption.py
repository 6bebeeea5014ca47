"""Adoption of objects without a controller, and release of objects that no longer match."""

import contextlib
from typing import Any, TypeVar

import msgspec

from gangline.api.meta.objects import Object, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import NotFound

T = TypeVar("T", bound=Object)


async def adopt_object(
    client: ApiClient, kind: Resource[T], orphan: T, owner: dict[str, Any]
) -> None:
    """Make ``owner`` (a reference) the controller of an object that has none.

    Raises:
        Conflict: the object has changed since it was read.
    """
    references = [*msgspec.to_builtins(orphan.metadata.owner_references), owner]
    await _set_owners(client, kind, orphan, references)


async def release_object(client: ApiClient, kind: Resource[T], held: T, owner_uid: str) -> None:
    """Remove the reference to an owner from an object.

    Raises:
        Conflict: the object has changed since it was read.
    """
    kept: list[OwnerReference] = [
        owner for owner in held.metadata.owner_references if owner.uid != owner_uid
    ]
    await _set_owners(client, kind, held, msgspec.to_builtins(kept))


async def _set_owners(
    client: ApiClient, kind: Resource[T], found: T, references: list[dict[str, Any]]
) -> None:
    meta = found.metadata
    patch = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": references,
        }
    }
    with contextlib.suppress(NotFound):
        await client.patch(kind, meta.name, patch, meta.namespace, kind=PatchKind.MERGE)
