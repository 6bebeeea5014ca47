"""What a definition of another installation has that ours lacks.

Two programs may share a kind, such as training-operator and Gangline during a migration. A schema
that lacks a field makes the API server drop that field from stored jobs, so ours never replaces
a wider one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

_MAX_FIELDS = 5


def describe_loss(theirs: Json, ours: Json) -> str:
    """Return what ours would remove, such as ``has what Gangline's lacks: v1 spec.x``, or ""."""
    lost = lost_fields(theirs, ours)
    if not lost:
        return ""
    more = f" and {len(lost) - _MAX_FIELDS} more" if len(lost) > _MAX_FIELDS else ""
    return f"has what Gangline's lacks: {', '.join(lost[:_MAX_FIELDS])}{more}"


def lost_fields(theirs: Json, ours: Json) -> list[str]:
    """Return versions and fields of a CRD that ours would remove, such as ``v1 spec.x``."""
    own = {entry["name"]: entry for entry in ours["spec"]["versions"]}
    removed = []
    for version in theirs["spec"]["versions"]:
        name = version["name"]
        if name not in own:
            removed.append(f"version {name}")
            continue
        fields = _missing(_schema(version), _schema(own[name]), "")
        removed += [f"{name} {field}" for field in fields]
    return removed


def _schema(version: Json) -> Json:
    schema: Json = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


def _missing(theirs: Json, ours: Json, path: str) -> Iterator[str]:
    if ours.get("x-kubernetes-preserve-unknown-fields"):
        return
    if theirs.get("x-kubernetes-preserve-unknown-fields") and theirs.get("type") == "object":
        yield f"{path or 'any field'} (any content)"
        return
    own = ours.get("properties") or {}
    for name, schema in (theirs.get("properties") or {}).items():
        where = f"{path}.{name}".removeprefix(".")
        if name in own:
            yield from _missing(schema, own[name], where)
        elif not isinstance(ours.get("additionalProperties"), Mapping) and where != "metadata":
            yield where
    for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        theirs_inner, ours_inner = theirs.get(key), ours.get(key)
        if isinstance(theirs_inner, Mapping) and isinstance(ours_inner, Mapping):
            yield from _missing(theirs_inner, ours_inner, f"{path}{suffix}")
