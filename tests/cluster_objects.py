"""Everything that a cluster stores, to compare what is there before and after."""

from typing import Any

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

PASSING = {"events", "componentstatuses", "endpointslices", "podmetrics"}
"""Resources that come and go by themselves, or are not stored."""


async def list_objects(client: ApiClient) -> set[str]:
    """Return all objects as ``Kind namespace/name``, but those of namespaces that are ending."""
    namespaces = (await client.request_json("GET", "/api/v1/namespaces"))["items"]
    ending = {
        item["metadata"]["name"] for item in namespaces if "deletionTimestamp" in item["metadata"]
    }
    found: set[str] = set()
    for root in await _roots(client):
        resources = (await client.request_json("GET", root))["resources"]
        for each in resources:
            if "list" not in each["verbs"] or "/" in each["name"] or each["name"] in PASSING:
                continue
            try:
                listed = await client.request_json("GET", f"{root}/{each['name']}")
            except ApiError:  # of an aggregated API without a server
                continue
            found |= {
                f"{each['kind']} {_place(item['metadata'])}"
                for item in listed["items"]
                if item["metadata"].get("namespace") not in ending
                and not (each["kind"] == "Namespace" and item["metadata"]["name"] in ending)
            }
    return found


async def _roots(client: ApiClient) -> list[str]:
    groups = (await client.request_json("GET", "/apis"))["groups"]
    return ["/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups)]


def _place(metadata: dict[str, Any]) -> str:
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
