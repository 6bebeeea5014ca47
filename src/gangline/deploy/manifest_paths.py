"""Paths of the API for objects that are plain data."""

from collections.abc import Mapping
from typing import Any


def plural_of(kind: str) -> str:
    """Return the resource of a kind of the chart: all have regular plurals."""
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def collection_path(api_version: str, kind: str, namespace: str = "") -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural_of(kind)}"


def object_path(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    collection = collection_path(
        manifest["apiVersion"], manifest["kind"], metadata.get("namespace", "")
    )
    return f"{collection}/{metadata['name']}"
