"""Discovery: served groups, versions and resources, in the original and the aggregated form."""

from typing import Any

from gangline.local.apiserver.core.errors import unknown_path
from gangline.local.apiserver.core.registry import SUBRESOURCES, Json, Registry, ServedKind


def core_api_versions(address: str) -> Json:
    """Return the response for ``/api``."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def api_group_list(registry: Registry) -> Json:
    """Return the response for ``/apis``."""
    found = [describe_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def api_group(registry: Registry, name: str) -> Json:
    """Return the response for ``/apis/GROUP``."""
    versions = registry.groups().get(name)
    if not name or versions is None:
        raise unknown_path()
    return {"kind": "APIGroup", "apiVersion": "v1", **describe_group(name, versions)}


def describe_group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def api_resource_list(registry: Registry, group_name: str, version: str) -> Json:
    """Return the response for ``/api/v1`` and ``/apis/GROUP/VERSION``."""
    kinds = [kind for kind in registry if (kind.group, kind.version) == (group_name, version)]
    if not kinds:
        raise unknown_path()
    listed: list[Json] = []
    for kind in kinds:
        listed.append(_resource(kind))
        listed += [_subresource(kind, name) for name in kind.subresources]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": listed,
    }


def _resource(kind: ServedKind) -> Json:
    found: Json = {
        "name": kind.plural,
        "singularName": kind.singular_name,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    return found


def _subresource(kind: ServedKind, name: str) -> Json:
    group_name, version, kind_name, verbs = SUBRESOURCES[name]
    found: Json = {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": kind_name or kind.kind,
        "verbs": list(verbs),
    }
    if version:
        found["group"], found["version"] = group_name, version
    return found


def aggregated_discovery(registry: Registry, core: bool, version: str) -> Json:
    """Return the response for ``/api`` or ``/apis`` with all resources in one document."""
    kinds: dict[tuple[str, str], list[ServedKind]] = {}
    for kind in registry:
        kinds.setdefault((kind.group, kind.version), []).append(kind)
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "versions": [_aggregated_version(v, kinds[name, v]) for v in versions],
        }
        for name, versions in registry.groups().items()
        if (not name) == core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(version: str, kinds: list[ServedKind]) -> Json:
    listed = [_aggregated_resource(kind) for kind in kinds]
    return {"version": version, "resources": listed, "freshness": "Current"}


def _aggregated_resource(kind: ServedKind) -> Json:
    found: Json = {
        "resource": kind.plural,
        "responseKind": _response_kind(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular_name,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    if kind.subresources:
        found["subresources"] = [_aggregated_subresource(kind, s) for s in kind.subresources]
    return found


def _aggregated_subresource(kind: ServedKind, name: str) -> Json:
    group_name, version, kind_name, verbs = SUBRESOURCES[name]
    shown = (group_name, version) if version else (kind.group, kind.version)
    return {
        "subresource": name,
        "responseKind": _response_kind(*shown, kind_name or kind.kind),
        "verbs": list(verbs),
    }


def _response_kind(group_name: str, version: str, kind: str) -> dict[str, Any]:
    return {"group": group_name, "version": version, "kind": kind}
