"""Validation of batch/v1 Jobs."""

from gangline.api.core.workloads import JOB_UID_LABEL
from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes, enum_causes, minimum_causes
from gangline.api.validation.pods import template_causes
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json
from gangline.local.apiserver.machinery.validation.metadata import selector_causes

_COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
)
_MAX_INDEXED_PARALLELISM = 100_000
_SCHEDULING = ("nodeSelector", "tolerations", "schedulingGates")
"""Fields of the template that may change while a suspended Job has not started."""


def job_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    for name in _COUNTS:
        yield from minimum_causes(f"spec.{name}", spec.get(name), 0)
    modes = ("NonIndexed", "Indexed")
    yield from enum_causes("spec.completionMode", spec.get("completionMode"), modes)
    if spec.get("completionMode") == "Indexed":
        if spec.get("completions") is None:
            detail = "when completion mode is Indexed"
            yield field_causes.required("spec.completions", detail)
        parallelism = spec.get("parallelism")
        if isinstance(parallelism, int) and parallelism > _MAX_INDEXED_PARALLELISM:
            limit = f"must be less than or equal to {_MAX_INDEXED_PARALLELISM}"
            detail = f"{limit} when completion mode is Indexed"
            yield field_causes.invalid("spec.parallelism", parallelism, detail)
    policies = ("TerminatingOrFailed", "Failed")
    policy = spec.get("podReplacementPolicy")
    yield from enum_causes("spec.podReplacementPolicy", policy, policies)
    yield from _selector(obj, spec)
    template = subobject(spec, "template")
    if not template:
        yield field_causes.required("spec.template")
        return
    yield from template_causes("spec.template", template)
    restart = subobject(template, "spec").get("restartPolicy")
    yield from enum_causes("spec.template.spec.restartPolicy", restart, ("OnFailure", "Never"))


def _selector(obj: Json, spec: Json) -> Causes:
    selector = subobject(spec, "selector")
    if not selector:
        yield field_causes.required("spec.selector")
        return
    yield from selector_causes("spec.selector", selector)
    labels = subobject(selector, "matchLabels")
    uid = subobject(obj, "metadata").get("uid")
    legacy = JOB_UID_LABEL.partition("/")[2]
    if not spec.get("manualSelector") and uid not in (
        labels.get(JOB_UID_LABEL),
        labels.get(legacy),
    ):
        yield field_causes.invalid("spec.selector", selector, "`selector` not auto-generated")
        return
    given = subobject(spec, "template", "metadata", "labels")
    if any(given.get(name) != value for name, value in labels.items()):
        path = "spec.template.metadata.labels"
        yield field_causes.invalid(path, given, "`selector` does not match template `labels`")


def job_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    for name in ("selector", "completionMode", "podFailurePolicy", "managedBy"):
        if before.get(name) != after.get(name):
            yield field_causes.invalid(f"spec.{name}", after.get(name), "field is immutable")
    completions, parallelism = after.get("completions"), after.get("parallelism")
    if before.get("completions") != completions:
        if after.get("completionMode") != "Indexed":
            yield field_causes.invalid("spec.completions", completions, "field is immutable")
        elif completions != parallelism:
            detail = "can only be modified in tandem with spec.parallelism"
            yield field_causes.invalid("spec.completions", completions, detail)
    templates = [copy_json(subobject(each, "template")) for each in (before, after)]
    if before.get("suspend") and not subobject(old, "status").get("startTime"):
        for template in templates:
            _remove_scheduling_fields(template)
    if templates[0] != templates[1]:
        yield field_causes.invalid("spec.template", after.get("template"), "field is immutable")


def _remove_scheduling_fields(template: Json) -> None:
    metadata, spec = subobject(template, "metadata"), subobject(template, "spec")
    metadata.pop("annotations", None)
    metadata.pop("labels", None)
    for name in _SCHEDULING:
        spec.pop(name, None)
    subobject(spec, "affinity").pop("nodeAffinity", None)
    if not spec.get("affinity"):
        spec.pop("affinity", None)
    for kind in ("containers", "initContainers"):
        for container in objects_in(spec.get(kind)):
            container.pop("resources", None)
