"""Validation of Workloads and PodGroups (scheduling.k8s.io).

Of their specifications only ``minCount`` of a gang may change, so that a group can be scaled.
"""

import copy
from collections.abc import Iterable
from functools import partial

from gangline.api.cluster.workload import GROUP
from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes
from gangline.local.apiserver.machinery.schema.nodes import Json


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


UPDATE_VALIDATORS = {
    (GROUP, "Workload"): partial(_update_causes, "podGroupTemplates"),
    (GROUP, "PodGroup"): partial(_update_causes, ""),
}
