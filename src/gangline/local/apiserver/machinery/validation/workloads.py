"""Validation of changes to pods, of deployments, replica sets, jobs and autoscalers.

Scheduling gates (KEP-3521, KEP-3838) can be removed and never added. While a pod has gates, its
node selector and its required node affinity can be narrowed, and its preferred node affinity can be
replaced: admission systems such as Kueue place a gated pod so, and then remove the gate.
Autoscalers have their stored form, autoscaling/v2.
"""

import json
import re
from typing import Any
from zoneinfo import available_timezones

from gangline.api.core.workloads import JOB_UID_LABEL
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes
from gangline.api.validation.pods import template_causes
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json
from gangline.local.apiserver.machinery.validation.metadata import selector_causes


def job_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from job_spec_causes("spec", spec)
    yield from _selector(obj, spec)


def job_spec_causes(path: str, spec: Json) -> Causes:
    template = subobject(spec, "template")
    yield from template_causes(child(path, "template"), template)
    if spec.get("podFailurePolicy") is not None:
        if (restart := subobject(template, "spec").get("restartPolicy")) == "OnFailure":
            detail = 'only "Never" is supported when podFailurePolicy is specified'
            yield field_causes.invalid(child(path, "template.spec.restartPolicy"), restart, detail)
        yield from _failure_policy(child(path, "podFailurePolicy.rules"), spec)


def _failure_policy(path: str, spec: Json) -> Causes:
    containers = {
        container.get("name")
        for kind in ("containers", "initContainers")
        for container in objects_in(subobject(spec, "template", "spec").get(kind))
    }
    for index, rule in enumerate(objects_in(subobject(spec, "podFailurePolicy").get("rules"))):
        where = indexed(path, index)
        action, codes = rule.get("action"), rule.get("onExitCodes")
        if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            detail = "requires the backoffLimitPerIndex to be set"
            yield field_causes.invalid(child(where, "action"), action, detail)
        given = [name for name in ("onExitCodes", "onPodConditions") if rule.get(name)]
        if len(given) != 1:
            detail = "specifying one of OnExitCodes and OnPodConditions is required"
            yield field_causes.invalid(where, rule, detail)
        if isinstance(codes, dict):
            yield from _exit_codes(child(where, "onExitCodes"), codes, containers)


def _exit_codes(path: str, rule: Json, containers: "set[Any]") -> Causes:
    operator, values, name = rule.get("operator"), rule.get("values"), rule.get("containerName")
    if name is not None and name not in containers:
        detail = "must be one of the container or initContainer names in the pod template"
        yield field_causes.invalid(child(path, "containerName"), name, detail)
    values, where = values if isinstance(values, list) else [], child(path, "values")
    if not values:
        yield field_causes.invalid(where, values, "at least one value is required")
    if operator == "In" and 0 in values:
        place = indexed(where, values.index(0))
        yield field_causes.invalid(place, 0, "must not be 0 for the In operator")
    if values != sorted(values):
        yield field_causes.invalid(where, values, "must be ordered")
    if len(set(values)) < len(values):
        yield field_causes.invalid(where, values, "must have no duplicates")


def cron_job_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    schedule = spec.get("schedule")
    if schedule and isinstance(schedule, str):
        yield from _schedule(schedule)
    zone = spec.get("timeZone")
    if isinstance(zone, str) and zone not in available_timezones():
        yield field_causes.invalid("spec.timeZone", zone, f"unknown time zone {zone}")
    job = subobject(spec, "jobTemplate", "spec")
    yield from job_spec_causes("spec.jobTemplate.spec", job)


_CRON_NAMES = (
    (), (), (),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
)  # fmt: skip
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
"""Minute, hour, day of the month, month, day of the week."""
_CRON_PART = re.compile(r"(?:[*?]|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)


def _schedule(text: str) -> Causes:
    """Check a schedule as Kubernetes' library for them reads it, robfig/cron."""
    if text.startswith("@"):
        known = ("annually", "daily", "hourly", "midnight", "monthly", "weekly", "yearly")
        if text[1:] not in known and not text.startswith("@every "):
            yield field_causes.invalid("spec.schedule", text, "unrecognized descriptor")
        return
    if text.startswith(("TZ=", "CRON_TZ=")):
        detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield field_causes.invalid("spec.schedule", text, detail)
        return
    fields = text.split()
    if len(fields) != len(_CRON_RANGES):
        detail = f"expected exactly 5 fields, found {len(fields)}: {text}"
        yield field_causes.invalid("spec.schedule", text, detail)
        return
    for field, (low, high), words in zip(fields, _CRON_RANGES, _CRON_NAMES, strict=True):
        for part in field.split(","):
            match = _CRON_PART.fullmatch(part)
            ends = [end for end in (match["low"], match["high"]) if end] if match else []
            numbers = [_cron_number(end.lower(), low, words) for end in ends]
            right = match is not None and match["step"] != "0" and numbers == sorted(numbers)
            if not right or any(not low <= number <= high for number in numbers):
                detail = f"{part!r} is not a value, range or step from {low} to {high}"
                yield field_causes.invalid("spec.schedule", text, detail)


def _cron_number(text: str, low: int, words: tuple[str, ...]) -> int:
    if text in words:
        return words.index(text) + low
    return int(text) if text.isdigit() else -1


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
    yield from _mismatched_labels(spec, labels)


def _mismatched_labels(spec: Json, required: Json) -> Causes:
    """Yield the error of a template whose pods a selector would not match."""
    given = subobject(spec, "template", "metadata", "labels")
    if any(given.get(name) != value for name, value in required.items()):
        path = "spec.template.metadata.labels"
        yield field_causes.invalid(path, given, "`selector` does not match template `labels`")


def job_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    completions, parallelism = after.get("completions"), after.get("parallelism")
    if before.get("completions") != completions:
        if after.get("completionMode") != "Indexed":
            yield field_causes.invalid("spec.completions", completions, "field is immutable")
        elif completions != parallelism:
            detail = "can only be modified in tandem with spec.parallelism"
            yield field_causes.invalid("spec.completions", completions, detail)
    templates = [copy_json(subobject(job, "template")) for job in (before, after)]
    if before.get("suspend") and not subobject(old, "status").get("startTime"):
        for template in templates:
            _remove_scheduling_fields(template)
    if templates[0] != templates[1]:
        yield field_causes.invalid("spec.template", after.get("template"), "field is immutable")


def _remove_scheduling_fields(template: Json) -> None:
    metadata, spec = subobject(template, "metadata"), subobject(template, "spec")
    metadata.pop("annotations", None)
    metadata.pop("labels", None)
    for name in ("tolerations", "schedulingGates"):
        spec.pop(name, None)
    remove_node_constraints(spec)
    for kind in ("containers", "initContainers"):
        for container in objects_in(spec.get(kind)):
            container.pop("resources", None)


_GATES = "spec.schedulingGates"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERM_LISTS = ("matchExpressions", "matchFields")


def added_gate_causes(before: Json, after: Json) -> Causes:
    """Check that no gate was added, given the two pod specs."""
    names = [gate.get("name") for gate in objects_in(before.get("schedulingGates"))]
    for index, gate in enumerate(objects_in(after.get("schedulingGates"))):
        if gate.get("name") not in names:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield field_causes.forbidden(f"{indexed(_GATES, index)}.name", detail)


def narrowing_causes(before: Json, after: Json) -> Causes:
    """Check that the nodes of a gated pod were only narrowed, given the two pod specs."""
    given = subobject(after, "nodeSelector")
    old = subobject(before, "nodeSelector")
    if any(given.get(label) != value for label, value in old.items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield field_causes.invalid("spec.nodeSelector", given, detail)
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms, allowed = _required_terms(after), _required_terms(before)
    if not allowed:
        return
    if len(terms) != len(allowed):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        yield field_causes.invalid(path, terms, detail)
        return
    for index, (term, former) in enumerate(zip(terms, allowed, strict=True)):
        if not _is_narrowed(former, term):
            detail = "only additions are allowed (no mutations or deletions)"
            yield field_causes.invalid(indexed(path, index), term, detail)


def remove_node_constraints(spec: Json) -> None:
    """Remove node selector and node affinity from a pod spec, to compare its other fields."""
    spec.pop("nodeSelector", None)
    affinity = spec.get("affinity")
    if isinstance(affinity, dict):
        affinity.pop("nodeAffinity", None)
    if not affinity:
        spec.pop("affinity", None)


def _required_terms(spec: Json) -> list[Json]:
    required = subobject(spec, "affinity", "nodeAffinity", _REQUIRED)
    return objects_in(required.get("nodeSelectorTerms"))


def _is_narrowed(former: Json, term: Json) -> bool:
    old = [objects_in(former.get(name)) for name in _TERM_LISTS]
    new = [objects_in(term.get(name)) for name in _TERM_LISTS]
    if not any(old):
        return not any(new)  # A term without expressions matches no node: any expression adds some.
    return all(after[: len(before)] == before for before, after in zip(old, new, strict=True))


_POD_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` "
    "(only additions to existing tolerations)"
)


def pod_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    for index, container in enumerate(objects_in(after.get("containers"))):
        if not container.get("image"):
            yield field_causes.required(indexed("spec.containers", index) + ".image")
    if before == after:  # nearly all updates of pods are of their status or metadata
        return
    yield from added_gate_causes(before, after)
    gated = bool(before.get("schedulingGates"))
    if gated:
        yield from narrowing_causes(before, after)
    before, after = copy_json(before), copy_json(after)
    if _toleration_keys(before) - _toleration_keys(after):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        yield field_causes.forbidden("spec.tolerations", detail)
    for spec in (before, after):
        for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(name, None)
        if gated:
            remove_node_constraints(spec)
        for kind in ("containers", "initContainers"):
            for container in objects_in(spec.get(kind)):
                container.pop("image", None)
    if before != after:
        changed = ", ".join(
            f"spec.{n}" for n in {**before, **after} if before.get(n) != after.get(n)
        )
        yield field_causes.forbidden("spec", f"{_POD_IMMUTABLE}; changed: {changed}")


def _toleration_keys(spec: Json) -> set[str]:
    """Return tolerations without their seconds as text, which can be in a set."""
    return {
        json.dumps({**toleration, "tolerationSeconds": None}, sort_keys=True)
        for toleration in objects_in(spec.get("tolerations"))
    }


def replica_set_causes(obj: Json, *, checks_pods: bool = True) -> Causes:
    spec = subobject(obj, "spec")
    yield from _controller_selector(spec)
    if checks_pods and (template := subobject(spec, "template")):
        yield from template_causes("spec.template", template)


_ROLLING_AMOUNTS = ("maxUnavailable", "maxSurge")


def deployment_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from replica_set_causes(obj)
    rolling = subobject(spec, "strategy", "rollingUpdate")
    if rolling and all(rolling.get(name) in (0, "0", "0%") for name in _ROLLING_AMOUNTS):
        detail = "may not be 0 when `maxSurge` is 0"
        yield field_causes.invalid("spec.strategy.rollingUpdate.maxUnavailable", 0, detail)


def replication_controller_causes(obj: Json) -> Causes:
    """Check it as a ReplicaSet: its selector has labels only, by default those of its template."""
    spec = subobject(obj, "spec")
    if not spec.get("template"):
        return
    labels = spec.get("selector") or subobject(spec, "template", "metadata").get("labels")
    yield from replica_set_causes({"spec": {**spec, "selector": {"matchLabels": labels}}})


def _controller_selector(spec: Json) -> Causes:
    selector = subobject(spec, "selector")
    if "selector" not in spec:
        yield field_causes.required("spec.selector")
        return
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield field_causes.invalid("spec.selector", selector, "empty selector is invalid")
        return
    yield from selector_causes("spec.selector", selector)
    yield from _mismatched_labels(spec, subobject(selector, "matchLabels"))


def autoscaler_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    low, high = spec.get("minReplicas"), spec.get("maxReplicas")
    if isinstance(high, int) and isinstance(low, int) and 0 < high < low:
        detail = "must be greater than or equal to `minReplicas`"
        yield field_causes.invalid("spec.maxReplicas", high, detail)
