"""Validation of roles and their bindings."""

from collections.abc import Callable
from functools import partial

from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes, name_causes
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import RBAC, check_path_segment


def role_causes(obj: Json, *, namespaced: bool) -> Causes:
    aggregation = obj.get("aggregationRule")
    if isinstance(aggregation, dict) and not aggregation.get("clusterRoleSelectors"):
        detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        yield field_causes.required("aggregationRule.clusterRoleSelectors", detail)
    for index, rule in enumerate(objects_in(obj.get("rules"))):
        yield from _rule_causes(rule, indexed("rules", index), namespaced=namespaced)


def _rule_causes(rule: Json, where: str, *, namespaced: bool) -> Causes:
    paths = rule.get("nonResourceURLs")
    if not rule.get("verbs"):
        yield field_causes.required(child(where, "verbs"), "verbs must contain at least one value")
    if paths:
        if namespaced:
            detail = "namespaced rules cannot apply to non-resource URLs"
            yield field_causes.invalid(child(where, "nonResourceURLs"), paths, detail)
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            detail = "rules cannot apply to both regular resources and non-resource URLs"
            yield field_causes.invalid(child(where, "nonResourceURLs"), paths, detail)
        return
    if not rule.get("apiGroups"):
        detail = "resource rules must supply at least one api group"
        yield field_causes.required(child(where, "apiGroups"), detail)
    if not rule.get("resources"):
        detail = "resource rules must supply at least one resource"
        yield field_causes.required(child(where, "resources"), detail)


def binding_causes(obj: Json, *, namespaced: bool) -> Causes:
    reference = subobject(obj, "roleRef")
    if reference.get("apiGroup") != RBAC:
        yield field_causes.unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), (RBAC,))
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    if reference.get("kind") not in kinds:
        yield field_causes.unsupported("roleRef.kind", reference.get("kind", ""), kinds)
    yield from name_causes(check_path_segment, "roleRef.name", reference.get("name"))
    for index, subject in enumerate(objects_in(obj.get("subjects"))):
        yield from _subject_causes(subject, indexed("subjects", index), namespaced=namespaced)


def _subject_causes(subject: Json, where: str, *, namespaced: bool) -> Causes:
    if not subject.get("name"):
        yield field_causes.required(child(where, "name"))
    groups = {"ServiceAccount": "", "User": RBAC, "Group": RBAC}
    kind, group = subject.get("kind"), subject.get("apiGroup") or ""
    if kind not in groups:
        yield field_causes.unsupported(child(where, "kind"), kind or "", tuple(groups))
    elif group != groups[kind]:
        yield field_causes.unsupported(child(where, "apiGroup"), group, (groups[kind],))
    # Without a namespace it is an account in the namespace of the binding.
    if kind == "ServiceAccount" and not namespaced and not subject.get("namespace"):
        yield field_causes.required(child(where, "namespace"))


def binding_update_causes(old: Json, new: Json) -> Causes:
    if old.get("roleRef") != new.get("roleRef"):
        yield field_causes.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


VALIDATORS: dict[tuple[str, str], Callable[[Json], Causes]] = {
    (RBAC, "ClusterRole"): partial(role_causes, namespaced=False),
    (RBAC, "ClusterRoleBinding"): partial(binding_causes, namespaced=False),
    (RBAC, "Role"): partial(role_causes, namespaced=True),
    (RBAC, "RoleBinding"): partial(binding_causes, namespaced=True),
}
