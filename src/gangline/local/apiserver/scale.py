"""The Scale of a workload: its desired and current replicas."""

from typing import Any

import msgspec

from gangline.api.meta import LabelSelector
from gangline.api.selectors import SelectorError, selector_from_object
from gangline.local.apiserver.errors import bad_request, invalid
from gangline.local.apiserver.machinery.field_errors import invalid as invalid_field
from gangline.local.apiserver.registry import Json, ServedKind

COPIED_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
BUILT_IN_PATHS: Json = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


def read_scale(kind: ServedKind, obj: Json) -> Json:
    paths = kind.scale or BUILT_IN_PATHS
    meta = obj["metadata"]
    status: Json = {"replicas": _get_path(obj, paths.get("statusReplicasPath", "")) or 0}
    selector = _selector(_get_path(obj, paths.get("labelSelectorPath", "")))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in COPIED_METADATA if name in meta},
        "spec": {"replicas": _get_path(obj, paths["specReplicasPath"]) or 0},
        "status": status,
    }


def apply_scale(kind: ServedKind, obj: Json, scale: Any) -> Json:
    """Return the object with the replicas of a Scale.

    Raises:
        StatusError: the Scale is invalid.
    """
    if not isinstance(scale, dict) or scale.get("kind", "Scale") != "Scale":
        raise bad_request("the body of the request must be a Scale object")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        cause = invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("autoscaling", "Scale", obj["metadata"]["name"], [cause])
    parts = _parts((kind.scale or BUILT_IN_PATHS)["specReplicasPath"])
    changed = _set_path(obj, parts, replicas)
    revision = (scale.get("metadata") or {}).get("resourceVersion")
    if revision:
        changed["metadata"] = {**changed["metadata"], "resourceVersion": revision}
    else:
        changed["metadata"] = dict(changed["metadata"])
    return changed


def _parts(path: str) -> list[str]:
    return [part for part in path.split(".") if part]


def _get_path(obj: Any, path: str) -> Any:
    if not path:
        return None
    for part in _parts(path):
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj


def _set_path(obj: Json, parts: list[str], value: object) -> Json:
    head, *rest = parts
    inner = obj.get(head)
    below = _set_path(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**obj, head: below}


def _selector(found: Any) -> str:
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        return ""
    if "matchLabels" not in found and "matchExpressions" not in found:
        return ",".join(f"{key}={value}" for key, value in sorted(found.items()))
    try:
        return str(selector_from_object(msgspec.convert(found, LabelSelector)))
    except (SelectorError, msgspec.ValidationError):
        return ""
