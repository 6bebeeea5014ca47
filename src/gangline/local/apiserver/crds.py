"""CustomResourceDefinitions: their validation, and the kinds that they add to the registry.

A definition is complete when it is stored: the write checks its names, versions, schemas and
columns and sets its conditions, and its kinds are served before the response is sent. Deleting a
definition first deletes its objects; until then a finalizer blocks the deletion.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import ANY_OBJECT_SCHEMA, Json, Registry, ServedKind
from gangline.local.apiserver.machinery.cel import missing_library
from gangline.local.apiserver.machinery.schema.nodes import LIST_TYPE, copy_json
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema
from gangline.local.apiserver.machinery.schema.value_rules import PatternError, compile_pattern
from gangline.local.apiserver.machinery.validation.table import table_causes, table_update_causes
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent
from gangline.local.apiserver.watch import WatchBroadcasters

CRD_STORAGE_NAME = "customresourcedefinitions.apiextensions.k8s.io"
GROUP, KIND = "apiextensions.k8s.io", "CustomResourceDefinition"
RULES = "x-kubernetes-validations"
_VERSION = re.compile(r"v(?P<number>\d+)(?:(?P<stage>alpha|beta)(?P<step>\d+))?", re.ASCII)
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def served_kinds(definition: Json) -> list[ServedKind]:
    """Return the served kinds of a definition, preferred version first."""
    spec = definition["spec"]
    served = [version for version in spec.get("versions", []) if version.get("served")]
    stored = next((v["name"] for v in spec["versions"] if v.get("storage")), "")
    changed = definition["metadata"].get("generation", 1) > 1
    conversion = spec.get("conversion") or {}
    webhook = conversion.get("webhook") if conversion.get("strategy") == "Webhook" else None
    more = {"was_changed": changed, "conversion_webhook": webhook}
    return [_kind(spec, version, stored, more) for version in sorted(served, key=_version_order)]


def _kind(spec: Json, version: Json, stored: str, more: Json) -> ServedKind:
    names = spec["names"]
    subresources: Json = version.get("subresources") or {}
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or ANY_OBJECT_SCHEMA
    if spec.get("preserveUnknownFields"):
        schema = {**schema, "x-kubernetes-preserve-unknown-fields": True}
    columns = version.get("additionalPrinterColumns")
    fields = version.get("selectableFields") or []
    return ServedKind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or "",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        namespaced=spec.get("scope") == "Namespaced",
        subresources=tuple(name for name in ("status", "scale") if name in subresources),
        storage_version=stored,
        counts_generations=True,
        resets_status="status" in subresources,
        custom=True,
        selectable=tuple(column["jsonPath"].removeprefix(".") for column in fields),
        schema_source=lambda: schema,
        columns=tuple(columns) if columns is not None else None,
        scale=subresources.get("scale"),
        **more,
    )


def _version_order(version: Json) -> tuple[int, int, int, str]:
    """Sort key of versions: v2 before v1 before v1beta1 before v1alpha1 before other names."""
    name: str = version["name"]
    if (match := _VERSION.fullmatch(name)) is None:
        return (1, 0, 0, name)
    stage = {None: 0, "beta": 1, "alpha": 2}[match["stage"]]
    return (0, stage * 10000 - int(match["number"]), -int(match["step"] or 0), name)


class CrdRegistrar:
    """Keeps the registry consistent with the stored definitions."""

    def __init__(self, registry: Registry, broadcasts: WatchBroadcasters) -> None:
        self._registry = registry
        self._broadcasts = broadcasts

    def load(self, store: ObjectStore) -> None:
        for record in store.cache(CRD_STORAGE_NAME).records.values():
            definition = read_json(record.body)
            if is_established(definition):
                self._registry.add(served_kinds(definition))

    def on_change(self, event: CacheEvent) -> None:
        definition: Json = read_json(event.record.body)
        spec = definition["spec"]
        self._registry.remove(spec["group"], spec["names"]["plural"])
        if event.type != DELETED and is_established(definition):
            self._registry.add(served_kinds(definition))
        else:
            self._broadcasts.end_resource(f"{spec['names']['plural']}.{spec['group']}")


def is_established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def complete_definition(registry: Registry, definition: Json, at: str) -> None:
    """Set the status of a definition in place. ``at`` is the time of transitions."""
    spec = definition["spec"]
    names = spec["names"]
    problem = _name_conflict(registry, spec)
    status = definition.setdefault("status", {})
    former = {condition["type"]: condition for condition in status.get("conditions") or []}
    accepted = ("True", "NoConflicts", "no conflicts found")
    established = ("True", "InitialNamesAccepted", "the initial names have been accepted")
    if problem:
        accepted = ("False", "NameConflict", problem)
        established = ("False", "NotAccepted", "not all names are accepted")
    status["conditions"] = [
        _condition(former, "NamesAccepted", *accepted, at),
        _condition(former, "Established", *established, at),
    ]
    status["acceptedNames"] = names
    stored = [version["name"] for version in spec.get("versions", []) if version.get("storage")]
    status["storedVersions"] = sorted({*(status.get("storedVersions") or ()), *stored})
    meta = definition["metadata"]
    if "deletionTimestamp" not in meta and CLEANUP_FINALIZER not in meta.get("finalizers", []):
        meta["finalizers"] = [*meta.get("finalizers", []), CLEANUP_FINALIZER]


def _condition(
    former: dict[str, Json], type_: str, status: str, reason: str, message: str, at: str
) -> Json:
    before = former.get(type_)
    since = before["lastTransitionTime"] if before and before["status"] == status else at
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def _name_conflict(registry: Registry, spec: Json) -> str:
    names = spec["names"]
    for kind in registry:
        if kind.group != spec["group"] or kind.plural == names["plural"]:
            continue
        if kind.kind == names["kind"]:
            return f'"{names["kind"]}" is already in use'
        if shared := {*kind.short_names} & {*(names.get("shortNames") or ())}:
            return f'"{sorted(shared)[0]}" is already in use'
    return ""


Causes = Iterator[StatusCause]

TYPES = ("object", "array", "string", "integer", "number", "boolean")
MAX_SCHEMA_DEPTH = 100


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


KEYWORDS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(
        ("maximum", "minimum", "multipleOf"), (lambda v: type(v) in (int, float), "number")
    ),
    **dict.fromkeys(
        ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
        (lambda v: type(v) is int and v >= 0, "non-negative integer"),
    ),
    **dict.fromkeys(
        ("type", "format", "pattern", "description", "title", "x-kubernetes-list-type",
         "x-kubernetes-map-type"), (lambda v: type(v) is str, "string"),
    ),
    **dict.fromkeys(
        ("nullable", "uniqueItems", "exclusiveMaximum", "exclusiveMinimum",
         "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource",
         "x-kubernetes-preserve-unknown-fields"), (lambda v: type(v) is bool, "boolean"),
    ),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), (_is_strings, "list of strings")),
    "enum": (lambda v: type(v) is list, "list"),
}  # fmt: skip


def crd_causes(definition: Json) -> list[StatusCause]:
    causes = list(table_causes(GROUP, KIND, definition))
    if any(cause.reason == "FieldValueRequired" for cause in causes):
        return causes
    spec = definition["spec"]
    expected = f"{spec['names']['plural']}.{spec['group']}"
    given = definition["metadata"].get("name")
    if given != expected:
        detail = 'must be spec.names.plural+"."+spec.group'
        causes.append(
            field_causes.invalid("metadata.name", given, f"{detail}, which is {expected}")
        )
    versions = objects_in(spec["versions"])
    for index, version in enumerate(versions):
        causes += _version(version, indexed("spec.versions", index))
    if (stored := sum(bool(version.get("storage")) for version in versions)) != 1:
        detail = "must have exactly one version marked as storage version"
        causes.append(field_causes.invalid("spec.versions", stored, detail))
    conversion = subobject(spec, "conversion")
    reviews = subobject(conversion, "webhook").get("conversionReviewVersions") or []
    if conversion.get("strategy") == "Webhook" and "v1" not in reviews:
        where = "spec.conversion.webhook.conversionReviewVersions"
        causes.append(field_causes.invalid(where, reviews, "must include at least one of v1"))
    return causes


def crd_update_causes(old: Json, new: Json) -> Causes:
    """Yield the errors of a change: what objects were stored under cannot change."""
    if not is_established(old):
        return
    yield from table_update_causes(GROUP, KIND, old, new)
    listed = [version["name"] for version in new["spec"]["versions"]]
    for index, version in enumerate(subobject(old, "status").get("storedVersions") or []):
        if version not in listed:
            where = indexed("status.storedVersions", index)
            detail = "must appear in spec.versions: objects are stored in this version"
            yield field_causes.invalid(where, version, detail)


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


def _columns(columns: Any, path: str) -> Causes:
    for index, column in enumerate(objects_in(columns)):
        where = f"{indexed(f'{path}.additionalPrinterColumns', index)}.jsonPath"
        try:
            JSONPath(column.get("jsonPath") or "")
        except (JSONPathError, TypeError) as error:
            yield field_causes.invalid(where, column.get("jsonPath"), str(error))


def schema_causes(
    schema: Any, path: str, depth: int = 0, *, structural: bool = True, correlated: bool = True
) -> Causes:
    """Yield the errors of a value as a structural schema, or as a branch of one. ``correlated``:
    rules can compare a value with the one before.
    """
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
    yield from _default(schema, path)
    if RULES in schema and (missing := missing_library()):
        yield field_causes.forbidden(f"{path}.{RULES}", missing)
    elif RULES in schema:
        # Most clusters have no rules: the library takes 50 ms to load.
        from gangline.local.apiserver.machinery.cel.rules import rule_causes

        yield from rule_causes(schema, path, correlated=correlated)
    yield from _parts(schema, path, depth, (structural, correlated))


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


def _default(schema: Json, path: str) -> Causes:
    """A default that is invalid would make each object without the field invalid."""
    if "default" not in schema:
        return
    where, value = f"{path}.default", copy_json(schema["default"])
    if value is None and schema.get("nullable"):
        return
    own = {name: part for name, part in schema.items() if name != "default"}
    try:
        rules = StructuralSchema({"type": "object", "properties": {"default": own}})
        unknown = rules.prune({"default": value})
        errors = rules.validate({"default": schema["default"]})
    except (PatternError, TypeError, AttributeError, ValueError, KeyError):
        return  # the schema itself is wrong, as others say
    if unknown:
        detail = f"must not have unknown fields: {', '.join(unknown)}"
        yield field_causes.invalid(where, schema["default"], detail)
    for cause in errors:
        place = cause.field.removeprefix("default")
        yield StatusCause(cause.reason, cause.message, f"{where}{place}")


def _parts(schema: Json, path: str, depth: int, flags: tuple[bool, bool]) -> Causes:
    structural, correlated = flags
    for keyword in ("properties", "patternProperties"):
        if not isinstance(schema.get(keyword, {}), dict):
            yield field_causes.invalid(f"{path}.{keyword}", schema[keyword], "must be an object")
    for part, where, what in _typed_parts(schema, path):
        # Elements of other lists have no identity.
        same = correlated and (where != f"{path}.items" or schema.get(LIST_TYPE) == "map")
        yield from schema_causes(part, where, depth + 1, structural=structural, correlated=same)
        if structural:
            yield from _missing_type(part, where, what)
    if "not" in schema:
        yield from schema_causes(schema["not"], f"{path}.not", depth + 1, structural=False)
    for keyword in ("allOf", "anyOf", "oneOf"):
        listed = schema.get(keyword, [])
        if not isinstance(listed, list):
            yield field_causes.invalid(f"{path}.{keyword}", listed, "must be a list of schemas")
            continue
        for index, part in enumerate(listed):
            where = indexed(f"{path}.{keyword}", index)
            yield from schema_causes(part, where, depth + 1, structural=False)


def _typed_parts(schema: Json, path: str) -> Iterator[tuple[Any, str, str]]:
    """Yield the schemas of members, with their paths and what they are members of."""
    for keyword in ("properties", "patternProperties"):
        for name, part in subobject(schema, keyword).items():
            yield part, indexed(f"{path}.{keyword}", name), "object fields"
    if "items" in schema:
        yield schema["items"], f"{path}.items", "array items"
    if not isinstance(schema.get("additionalProperties", True), bool):
        yield schema["additionalProperties"], f"{path}.additionalProperties", "object fields"


def _missing_type(schema: Any, path: str, what: str) -> Causes:
    """The type of a node of a structural schema; branches of ``anyOf`` and the like need none."""
    exempt = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    if isinstance(schema, dict) and not schema.get("type") and not any(map(schema.get, exempt)):
        yield field_causes.required(f"{path}.type", f"must not be empty for specified {what}")
