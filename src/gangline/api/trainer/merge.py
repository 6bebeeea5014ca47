"""Strategic merge of pod templates: the rules by which runtime patches change a runtime.

As in Kubernetes: objects are merged field by field, ``null`` removes a field, and lists are
replaced, except those whose elements have a key (containers by name). Elements of the patch that
the list lacks are appended.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "replicatedJobs": "name",
}
"""The key of the elements, by the field of the list; other lists are replaced."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """Return ``base`` changed by ``patch``; neither is modified."""
    merged = dict(base)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_value(name, merged.get(name), value)
    return merged


def merge_list(base: Sequence[Json], patch: Sequence[Json], key: str) -> list[Json]:
    """Merge lists of objects that ``key`` identifies, in the order of ``base``."""
    merged = {item.get(key): item for item in base}
    for item in patch:
        before = merged.get(item.get(key))
        merged[item.get(key)] = merge(before, item) if before is not None else item
    return list(merged.values())


def _merge_value(name: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, Mapping):
        return merge(base if isinstance(base, Mapping) else {}, patch)
    key = MERGE_KEYS.get(name)
    if key and isinstance(base, list) and isinstance(patch, list):
        return merge_list(base, patch, key)
    return patch


def upsert_env(container: Json, variables: Sequence[Json]) -> Json:
    """Set variables of a container: each replaces the one of its name, which keeps its position."""
    if not variables:
        return container
    merged = {variable.get("name"): variable for variable in container.get("env") or []}
    merged.update({variable.get("name"): variable for variable in variables})
    return {**container, "env": list(merged.values())}
