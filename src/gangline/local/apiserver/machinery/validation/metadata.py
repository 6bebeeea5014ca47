"""Validation of ``metadata``, and the rules of names, labels and numbers that all kinds share.

The rules of ``gangline.api`` become field errors with a path. Of ``metadata`` only the rule of the
name depends on the kind.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from gangline.api import names
from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.schema.nodes import Json

NameRule: TypeAlias = Callable[[str], names.NameProblem | None]
Causes: TypeAlias = Iterator[StatusCause]

MAX_ANNOTATION_BYTES = 256 * 1024
"""Maximum size of all annotations of an object, keys included, in bytes."""


def check_path_segment(name: str) -> names.NameProblem | None:
    """Check a name that must be a valid path segment, such as the name of a role."""
    if name in (".", "..") or "/" in name or "%" in name:
        return names.NameProblem(
            "is not a valid path segment", "use no '/' and no '%', nor '.' or '..'"
        )
    return None


def rule_causes(rule: NameRule, path: str, value: Any) -> Causes:
    """Yield the error of a rule for a text. Values of other types are left to the schema."""
    if isinstance(value, str) and (found := rule(value)) is not None:
        yield field_errors.invalid(path, value, f"{found.problem}; {found.remedy}")


def name_causes(rule: NameRule, path: str, value: Any) -> Causes:
    """Yield the errors of a required name."""
    if value in (None, ""):
        yield field_errors.required(path)
    else:
        yield from rule_causes(rule, path, value)


def label_causes(path: str, labels: Any) -> Causes:
    """Yield the errors of labels, or of ``matchLabels``."""
    for key, value in _string_items(labels):
        yield from rule_causes(names.validate_label_key, path, key)
        yield from rule_causes(names.validate_label_value, field_errors.indexed(path, key), value)


def annotation_causes(path: str, annotations: Any) -> Causes:
    """Yield the errors of annotations: their keys, and their total size."""
    size = 0
    for key, value in _string_items(annotations):
        # Keys of annotations and labels follow the same rule.
        yield from rule_causes(names.validate_label_key, path, key)
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATION_BYTES:
        yield field_errors.too_long(path, MAX_ANNOTATION_BYTES)


def selector_causes(path: str, selector: Json) -> Causes:
    yield from label_causes(child(path, "matchLabels"), selector.get("matchLabels"))
    for index, term in enumerate(selector.get("matchExpressions") or []):
        if not isinstance(term, dict):
            continue
        where = field_errors.indexed(child(path, "matchExpressions"), index)
        yield from name_causes(names.validate_label_key, child(where, "key"), term.get("key"))
        operator, values = term.get("operator"), term.get("values")
        if operator in ("In", "NotIn") and not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            yield field_errors.required(child(where, "values"), detail)
        elif operator in ("Exists", "DoesNotExist") and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield field_errors.forbidden(child(where, "values"), detail)
        elif operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            yield field_errors.invalid(
                child(where, "operator"), operator, "not a valid selector operator"
            )


def enum_causes(path: str, value: Any, allowed: Iterable[str]) -> Causes:
    if value is not None and value not in allowed:
        yield field_errors.unsupported(path, value, allowed)


def minimum_causes(path: str, value: Any, low: int) -> Causes:
    if isinstance(value, int) and not isinstance(value, bool) and value < low:
        yield field_errors.invalid(path, value, f"must be greater than or equal to {low}")


def port_causes(path: str, value: Any) -> Causes:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= 65_535:
        yield field_errors.invalid(path, value, "must be between 1 and 65535, inclusive")


def _string_items(values: Any) -> Iterator[tuple[str, str]]:
    if isinstance(values, dict):
        yield from ((key, value) for key, value in values.items() if isinstance(value, str))


RBAC = "rbac.authorization.k8s.io"

NAME_RULES: Mapping[tuple[str, str], NameRule] = {
    ("", "Namespace"): names.validate_dns_label,
    ("", "Service"): names.validate_service_name,
    (RBAC, "ClusterRole"): check_path_segment,
    (RBAC, "ClusterRoleBinding"): check_path_segment,
    (RBAC, "Role"): check_path_segment,
    (RBAC, "RoleBinding"): check_path_segment,
}
"""Kinds whose names need not be DNS subdomains."""


def metadata_causes(group: str, kind: str, obj: Json, namespaced: bool) -> Causes:
    metadata = subobject(obj, "metadata")
    rule = NAME_RULES.get((group, kind), names.validate_dns_subdomain)
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        yield field_errors.required("metadata.name", "name or generateName is required")
    if name:
        yield from rule_causes(rule, "metadata.name", name)
    elif isinstance(prefix, str):
        # The server appends letters and digits, so the prefix may end in a dash.
        yield from rule_causes(rule, "metadata.generateName", prefix.rstrip("-.") or prefix)
    if namespaced and not metadata.get("namespace"):
        yield field_errors.required("metadata.namespace")
    if not namespaced and metadata.get("namespace"):
        yield field_errors.forbidden("metadata.namespace", "not allowed on this type")
    yield from label_causes("metadata.labels", metadata.get("labels"))
    yield from annotation_causes("metadata.annotations", metadata.get("annotations"))
    yield from _owner_causes(metadata)
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        yield from rule_causes(
            names.validate_label_key, indexed("metadata.finalizers", index), finalizer
        )


def metadata_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "metadata"), subobject(new, "metadata")
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"):
        if name in after and after[name] != before.get(name):
            yield field_errors.invalid(f"metadata.{name}", after[name], "field is immutable")
    if before.get("deletionTimestamp"):
        added = set(after.get("finalizers") or []) - set(before.get("finalizers") or [])
        if added:
            detail = "no new finalizers can be added if the object is being deleted"
            found = ", ".join(sorted(map(str, added)))
            yield field_errors.forbidden(
                "metadata.finalizers", f"{detail}, found new finalizers: {found}"
            )


def _owner_causes(metadata: Json) -> Causes:
    controllers = []
    for index, owner in enumerate(objects_in(metadata.get("ownerReferences"))):
        path = indexed("metadata.ownerReferences", index)
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield field_errors.invalid(
                    child(path, name), owner.get(name, ""), "must not be empty"
                )
        if owner.get("controller") is True:
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        found = " and ".join(controllers)
        detail = f"Only one reference can have Controller set to true. Found {found}"
        yield field_errors.invalid("metadata.ownerReferences", len(controllers), detail)
