"""Validation of ``metadata``. Only the rule of the name depends on the kind."""

from collections.abc import Mapping

from gangline.api import names
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import (
    Causes,
    NameRule,
    annotation_causes,
    label_causes,
    requirement_causes,
    rule_causes,
)
from gangline.local.apiserver.machinery.schema.nodes import Json


def check_path_segment(name: str) -> names.NameProblem | None:
    """Check a name that must be a valid path segment, such as the name of a role."""
    if name in (".", "..") or "/" in name or "%" in name:
        return names.NameProblem(
            "is not a valid path segment", "use no '/' and no '%', nor '.' or '..'"
        )
    return None


def selector_causes(path: str, selector: Json) -> Causes:
    yield from label_causes(child(path, "matchLabels"), selector.get("matchLabels"))
    yield from requirement_causes(path, selector, ("DoesNotExist", "Exists", "In", "NotIn"))


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


SET_BY_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
STANDARD_FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")
ANY_FINALIZER = ("admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io")
"""Groups whose objects may have a finalizer without a domain, as custom objects."""


def metadata_causes(
    group: str, kind: str, obj: Json, namespaced: bool, custom: bool = False
) -> Causes:
    metadata = subobject(obj, "metadata")
    rule = NAME_RULES.get((group, kind), names.validate_dns_subdomain)
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        yield field_causes.required("metadata.name", "name or generateName is required")
    if name:
        yield from rule_causes(rule, "metadata.name", name)
    if isinstance(prefix, str):
        # The server appends letters and digits, so the prefix may end in a dash.
        yield from rule_causes(rule, "metadata.generateName", prefix.rstrip("-.") or prefix)
    if namespaced and not metadata.get("namespace"):
        yield field_causes.required("metadata.namespace")
    if not namespaced and metadata.get("namespace"):
        yield field_causes.forbidden("metadata.namespace", "not allowed on this type")
    yield from label_causes("metadata.labels", metadata.get("labels"))
    yield from annotation_causes("metadata.annotations", metadata.get("annotations"))
    yield from _owner_causes(metadata)
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        where = indexed("metadata.finalizers", index)
        yield from rule_causes(names.validate_label_key, where, finalizer)
        if custom or group in ANY_FINALIZER:
            continue
        if "/" not in str(finalizer) and finalizer not in STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield field_causes.invalid(where, finalizer, detail)


def metadata_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "metadata"), subobject(new, "metadata")
    for name in ("name", "namespace", "uid", "creationTimestamp", *SET_BY_DELETION):
        if name in after and after[name] != before.get(name):
            yield field_causes.invalid(f"metadata.{name}", after[name], "field is immutable")
    if before.get("deletionTimestamp"):
        added = set(after.get("finalizers") or []) - set(before.get("finalizers") or [])
        if added:
            detail = "no new finalizers can be added if the object is being deleted"
            names = ", ".join(sorted(map(str, added)))
            yield field_causes.forbidden(
                "metadata.finalizers", f"{detail}, found new finalizers: {names}"
            )


def _owner_causes(metadata: Json) -> Causes:
    controllers = []
    for index, owner in enumerate(objects_in(metadata.get("ownerReferences"))):
        path = indexed("metadata.ownerReferences", index)
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield field_causes.invalid(
                    child(path, name), owner.get(name, ""), "must not be empty"
                )
        if owner.get("controller") is True:
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        owners = " and ".join(controllers)
        detail = f"Only one reference can have Controller set to true. Found {owners}"
        yield field_causes.invalid("metadata.ownerReferences", len(controllers), detail)
