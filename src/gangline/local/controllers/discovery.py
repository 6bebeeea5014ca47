"""Discovery of the kinds that the API server serves now; custom resources change them."""

import asyncio
from collections.abc import Iterable
from typing import Any

from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient

REQUIRED_VERBS = frozenset({"list", "watch", "delete"})
IGNORED_RESOURCES = frozenset({("", "events"), ("events.k8s.io", "events")})
"""These have no owners, are many and short-lived."""

DiscoveredKind = Resource[Object]


async def discover_kinds(client: ApiClient) -> list[DiscoveredKind]:
    """List the kinds that can be listed, watched and deleted, in their preferred versions."""
    groups = (await client.request_json("GET", "/apis")).get("groups") or []
    versions = [group["preferredVersion"]["groupVersion"] for group in groups]
    paths = ["/api/v1", *(f"/apis/{version}" for version in versions)]
    documents = await asyncio.gather(*(client.request_json("GET", path) for path in paths))
    return [kind for document in documents for kind in parse_kinds(document)]


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
