"""Validation of Workloads and PodGroups (scheduling.k8s.io).

Of their specifications only ``minCount`` of a gang may change, so that a group can be scaled.
"""

import copy
from collections.abc import Collection, Iterable
from functools import partial

from gangline.api import names
from gangline.api.cluster.workload import GROUP
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes, minimum_causes, name_causes, rule_causes
from gangline.local.apiserver.machinery.schema.nodes import Json
from gangline.local.apiserver.machinery.validation.metadata import check_path_segment

MAX_TEMPLATES = 8


def workload_causes(obj: Json) -> Causes:
    spec, path = subobject(obj, "spec"), "spec.podGroupTemplates"
    if reference := subobject(spec, "controllerRef"):
        for name in ("kind", "name"):
            where = child("spec.controllerRef", name)
            yield from name_causes(check_path_segment, where, reference.get(name))
        if reference.get("apiGroup"):
            where = "spec.controllerRef.apiGroup"
            yield from rule_causes(names.validate_dns_subdomain, where, reference["apiGroup"])
    templates = objects_in(spec.get("podGroupTemplates"))
    if not templates:
        yield field_causes.required(path, "must have at least one item")
    if len(templates) > MAX_TEMPLATES:
        yield field_causes.too_many(path, len(templates), MAX_TEMPLATES)
        return
    for index, template in enumerate(templates):
        label, where = template.get("name"), indexed(path, index)
        yield from name_causes(names.validate_dns_label, child(where, "name"), label)
        if any(other.get("name") == label for other in templates[:index]):
            yield field_causes.duplicate(where, label)
        yield from _group_causes(where, template)


def pod_group_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from _group_causes("spec", spec)
    if reference := subobject(spec, "workloadRef"):
        where = "spec.workloadRef"
        workload, template = reference.get("workloadName"), reference.get("templateName")
        yield from name_causes(names.validate_dns_subdomain, child(where, "workloadName"), workload)
        yield from name_causes(names.validate_dns_label, child(where, "templateName"), template)


def _group_causes(path: str, spec: Json) -> Causes:
    """The fields that a PodGroup and a template have in common."""
    where, policy = child(path, "schedulingPolicy"), subobject(spec, "schedulingPolicy")
    yield from _union_causes(where, policy, ("basic", "gang"))
    if isinstance(gang := policy.get("gang"), dict):
        if not gang.get("minCount"):
            yield field_causes.required(child(where, "gang.minCount"))
        yield from minimum_causes(child(where, "gang.minCount"), gang.get("minCount") or 1, 1)
    if spec.get("disruptionMode") is not None:
        mode = subobject(spec, "disruptionMode")
        yield from _union_causes(child(path, "disruptionMode"), mode, ("single", "all"))
    where = child(path, "schedulingConstraints.topology")
    topology = objects_in(subobject(spec, "schedulingConstraints").get("topology"))
    if len(topology) > 1:
        yield field_causes.too_many(where, len(topology), 1)
    for index, constraint in enumerate(topology):
        key = child(indexed(where, index), "key")
        yield from name_causes(names.validate_label_key, key, constraint.get("key"))
    if spec.get("priorityClassName"):
        where = child(path, "priorityClassName")
        yield from rule_causes(names.validate_dns_subdomain, where, spec["priorityClassName"])


def _union_causes(path: str, value: Json, members: Collection[str]) -> Causes:
    given = [name for name in members if value.get(name) is not None]
    options = ", ".join(f"`{name}`" for name in members)
    if not given:
        yield field_causes.invalid(path, "", f"must specify one of: {options}")
    elif len(given) > 1:
        detail = f"exactly one of {options} is required, but multiple fields are set"
        yield field_causes.invalid(path, value, detail)


def _without_counts(groups: Iterable[Json]) -> None:
    for group in groups:
        subobject(group, "schedulingPolicy", "gang").pop("minCount", None)


def _update_causes(templates: str, old: Json, new: Json) -> Causes:
    before, after = copy.deepcopy(subobject(old, "spec")), copy.deepcopy(subobject(new, "spec"))
    for spec in (before, after):
        _without_counts(objects_in(spec.get(templates)) if templates else [spec])
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            value = subobject(new, "spec").get(name)
            yield field_causes.invalid(f"spec.{name}", value, "field is immutable")


VALIDATORS = {(GROUP, "Workload"): workload_causes, (GROUP, "PodGroup"): pod_group_causes}
UPDATE_VALIDATORS = {
    (GROUP, "Workload"): partial(_update_causes, "podGroupTemplates"),
    (GROUP, "PodGroup"): partial(_update_causes, ""),
}
