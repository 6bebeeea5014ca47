"""Validation of ``metadata``. Only the rule of the name depends on the kind."""

from collections.abc import Mapping

from gangline.api import names
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    NameRule,
    annotation_causes,
    rule_causes,
    label_causes,
    check_path_segment,
)
from gangline.local.apiserver.machinery.schemas import Json

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
    for index, owner in enumerate(iter_objects(metadata.get("ownerReferences"))):
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
