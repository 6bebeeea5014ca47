"""Validation of CustomResourceDefinitions: names, versions, schemas, columns.

A schema is checked completely before it is stored, because its kind is served immediately.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.machinery.schema.patterns import PatternError, compile_pattern

Causes = Iterator[StatusCause]

SCOPES = ("Namespaced", "Cluster")
TYPES = ("object", "array", "string", "integer", "number", "boolean")
COLUMN_TYPES = ("string", "integer", "number", "boolean", "date")
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
MAX_SCHEMA_DEPTH = 100


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


KEYWORDS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), (_is_number, "number")),
    **dict.fromkeys(
        ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
        (_is_count, "non-negative integer"),
    ),
    **dict.fromkeys(
        ("type", "format", "pattern", "description", "title", "x-kubernetes-list-type",
         "x-kubernetes-map-type"), (_is_string, "string"),
    ),
    **dict.fromkeys(
        ("nullable", "uniqueItems", "exclusiveMaximum", "exclusiveMinimum",
         "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource",
         "x-kubernetes-preserve-unknown-fields"), (_is_bool, "boolean"),
    ),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), (_is_strings, "list of strings")),
    "enum": (lambda value: isinstance(value, list), "list"),
}  # fmt: skip


def crd_causes(definition: Json) -> list[StatusCause]:
    spec = definition.get("spec")
    if not isinstance(spec, dict):
        return [field_causes.required("spec")]
    names = subobject(spec, "names")
    found = [
        field_causes.required(child(path, name))
        for path, part, required in (
            ("spec", spec, ("group", "scope")),
            ("spec.names", names, ("plural", "kind")),
        )
        for name in required
        if not isinstance(part.get(name), str) or not part[name]
    ]
    if found:
        return found
    found += _identity(definition, spec, names)
    found += _versions(spec)
    return found


def _identity(definition: Json, spec: Json, names: Json) -> Causes:
    expected = f"{names['plural']}.{spec['group']}"
    given = definition["metadata"].get("name")
    if given != expected:
        detail = 'must be spec.names.plural+"."+spec.group'
        yield field_causes.invalid("metadata.name", given, f"{detail}, which is {expected}")
    if spec["scope"] not in SCOPES:
        yield field_causes.unsupported("spec.scope", spec["scope"], SCOPES)
    for name in ("plural", "singular"):
        value = names.get(name)
        if value is not None and (not isinstance(value, str) or not DNS_LABEL.fullmatch(value)):
            yield field_causes.invalid(
                f"spec.names.{name}", value, "must be a lower-case DNS label"
            )
    for name in ("shortNames", "categories"):
        if names.get(name) is not None and not _is_strings(names[name]):
            yield field_causes.invalid(
                f"spec.names.{name}", names[name], "must be a list of strings"
            )


def _versions(spec: Json) -> Causes:
    versions = spec.get("versions")
    if not isinstance(versions, list) or not versions:
        yield field_causes.required("spec.versions", "must have at least one version")
        return
    stored = 0
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = indexed("spec.versions", index)
        if not isinstance(version, dict):
            yield field_causes.invalid(path, version, "must be an object")
            continue
        stored += bool(version.get("storage"))
        name = version.get("name")
        if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
            yield field_causes.invalid(f"{path}.name", name, "must be a lower-case DNS label")
        elif name in seen:
            yield field_causes.duplicate(f"{path}.name", name)
        else:
            seen.add(name)
        yield from _version(version, path)
    if stored != 1:
        detail = "must have exactly one version marked as storage version"
        yield field_causes.invalid("spec.versions", stored, detail)


def _version(version: Json, path: str) -> Causes:
    outer = version.get("schema")
    schema = outer.get("openAPIV3Schema") if isinstance(outer, dict) else None
    at = f"{path}.schema.openAPIV3Schema"
    if schema is None:
        yield field_causes.required(at, "schemas are required")
    else:
        if isinstance(schema, dict) and schema.get("type") != "object":
            yield field_causes.invalid(
                f"{at}.type", schema.get("type"), "must be object at the root"
            )
        yield from schema_causes(schema, at)
    yield from _columns(version.get("additionalPrinterColumns"), path)
    yield from _subresources(version.get("subresources"), f"{path}.subresources")


def _columns(columns: Any, path: str) -> Causes:
    columns = columns if isinstance(columns, list) else []
    if len(columns) > limits.MAX_PRINTER_COLUMNS:
        at, most = f"{path}.additionalPrinterColumns", limits.MAX_PRINTER_COLUMNS
        yield field_causes.too_many(at, len(columns), most)
        return
    for index, column in enumerate(columns):
        at = indexed(f"{path}.additionalPrinterColumns", index)
        if not isinstance(column, dict):
            yield field_causes.invalid(at, column, "must be an object")
            continue
        if not isinstance(column.get("name"), str) or not column["name"]:
            yield field_causes.required(f"{at}.name")
        if column.get("type") not in COLUMN_TYPES:
            yield field_causes.unsupported(f"{at}.type", column.get("type"), COLUMN_TYPES)
        try:
            JSONPath(column.get("jsonPath") or "")
        except (JSONPathError, TypeError) as error:
            yield field_causes.invalid(f"{at}.jsonPath", column.get("jsonPath"), str(error))


def _subresources(subresources: Any, path: str) -> Causes:
    if subresources is None:
        return
    if not isinstance(subresources, dict):
        yield field_causes.invalid(path, subresources, "must be an object")
        return
    scale = subresources.get("scale")
    if scale is None:
        return
    if not isinstance(scale, dict):
        yield field_causes.invalid(f"{path}.scale", scale, "must be an object")
        return
    for name, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        value = scale.get(name)
        if not isinstance(value, str) or not value.startswith(root):
            yield field_causes.invalid(
                f"{path}.scale.{name}", value, f"must be a path under {root}"
            )


def schema_causes(schema: Any, path: str, depth: int = 0) -> Causes:
    """Yield the errors of a value as a structural schema."""
    if not isinstance(schema, dict):
        yield field_causes.invalid(path, schema, "must be a schema, which is an object")
        return
    if depth > MAX_SCHEMA_DEPTH:
        yield field_causes.invalid(
            path, "…", f"must not be nested more than {MAX_SCHEMA_DEPTH} deep"
        )
        return
    for keyword, value in schema.items():
        rule = KEYWORDS.get(keyword)
        if rule is not None and not rule[0](value):
            yield field_causes.invalid(child(path, keyword), value, f"must be a {rule[1]}")
    yield from _type_and_pattern(schema, path)
    yield from _parts(schema, path, depth)


def _type_and_pattern(schema: Json, path: str) -> Causes:
    type_ = schema.get("type")
    if isinstance(type_, str) and type_ and type_ not in TYPES:
        yield field_causes.unsupported(f"{path}.type", type_, TYPES)
    if schema.get("$ref"):
        yield field_causes.forbidden(f"{path}.$ref", "$ref is not supported: write the schema out")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            compile_pattern(pattern)
        except PatternError as error:
            yield field_causes.invalid(
                f"{path}.pattern", pattern, f"must be a regular expression: {error}"
            )


def _parts(schema: Json, path: str, depth: int) -> Causes:
    for keyword in ("properties", "patternProperties"):
        named = schema.get(keyword)
        if isinstance(named, dict):
            for name, part in named.items():
                yield from schema_causes(part, indexed(f"{path}.{keyword}", name), depth + 1)
        elif keyword in schema:
            yield field_causes.invalid(f"{path}.{keyword}", named, "must be an object")
    for keyword in ("items", "not"):
        if keyword in schema:
            yield from schema_causes(schema[keyword], f"{path}.{keyword}", depth + 1)
    if not isinstance(schema.get("additionalProperties", True), bool):
        part = schema["additionalProperties"]
        yield from schema_causes(part, f"{path}.additionalProperties", depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        listed = schema.get(keyword, [])
        if not isinstance(listed, list):
            yield field_causes.invalid(f"{path}.{keyword}", listed, "must be a list of schemas")
            continue
        for index, part in enumerate(listed):
            yield from schema_causes(part, indexed(f"{path}.{keyword}", index), depth + 1)
