"""Discovery of the kinds that the API server serves now; custom resources change them."""

import asyncio
from collections.abc import Iterable
from typing import Any

from gangline.api.meta import Object
from gangline.api.resource import Resource
from gangline.kube.client import Client

NEEDED = frozenset({"list", "watch", "delete"})
UNOWNED = frozenset({("", "events"), ("events.k8s.io", "events")})
"""These have no owners, are many and short-lived."""

Kind = Resource[Object]


async def discover(client: Client) -> list[Kind]:
    """List the kinds that can be listed, watched and deleted, in their preferred versions."""
    groups = (await client.request_json("GET", "/apis")).get("groups") or []
    versions = [group["preferredVersion"]["groupVersion"] for group in groups]
    paths = ["/api/v1", *(f"/apis/{version}" for version in versions)]
    documents = await asyncio.gather(*(client.request_json("GET", path) for path in paths))
    return [kind for document in documents for kind in kinds(document)]


def kinds(document: dict[str, Any]) -> Iterable[Kind]:
    """Parse the kinds of one group and version from its discovery document."""
    group, _, version = document["groupVersion"].rpartition("/")
    for entry in document.get("resources") or []:
        if "/" in entry["name"] or (group, entry["name"]) in UNOWNED:
            continue
        if set(entry.get("verbs") or ()) >= NEEDED:
            yield Resource(
                Object, group, version, entry["name"], entry["kind"], bool(entry["namespaced"])
            )
