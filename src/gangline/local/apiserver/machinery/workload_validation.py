"""Validation of deployments and replica sets: selector, template, rollout."""

from gangline.api.meta import StatusCause
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.json_objects import subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    minimum_causes,
    enum_causes,
    selector_causes,
)
from gangline.local.apiserver.machinery.pod_validation import template_causes
from gangline.local.apiserver.machinery.schemas import Json


def replica_set_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from minimum_causes("spec.replicas", spec.get("replicas"), 0)
    yield from minimum_causes("spec.minReadySeconds", spec.get("minReadySeconds"), 0)
    yield from _selector(spec)
    template = subobject(spec, "template")
    if not template:
        yield field_errors.required("spec.template")
        return
    yield from template_causes("spec.template", template)
    policy = subobject(template, "spec").get("restartPolicy")
    yield from enum_causes("spec.template.spec.restartPolicy", policy, ("Always",))


def deployment_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from replica_set_causes(obj)
    for name in ("revisionHistoryLimit", "progressDeadlineSeconds"):
        yield from minimum_causes(f"spec.{name}", spec.get(name), 0)
    strategy = subobject(spec, "strategy")
    yield from enum_causes(
        "spec.strategy.type", strategy.get("type"), ("Recreate", "RollingUpdate")
    )
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        detail = "may not be specified when strategy `type` is 'Recreate'"
        yield field_errors.forbidden("spec.strategy.rollingUpdate", detail)
    elif isinstance(rolling, dict):
        yield from _rolling_update(rolling)


def selector_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec").get("selector"), subobject(new, "spec").get("selector")
    if before != after:
        yield field_errors.invalid("spec.selector", after, "field is immutable")


def _selector(spec: Json) -> Causes:
    selector = subobject(spec, "selector")
    if "selector" not in spec:
        yield field_errors.required("spec.selector")
        return
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield field_errors.invalid("spec.selector", selector, "empty selector is invalid")
        return
    yield from selector_causes("spec.selector", selector)
    labels = subobject(spec, "template", "metadata", "labels")
    required = subobject(selector, "matchLabels")
    if any(labels.get(name) != value for name, value in required.items()):
        path, detail = (
            "spec.template.metadata.labels",
            "`selector` does not match template `labels`",
        )
        yield field_errors.invalid(path, labels, detail)


def _rolling_update(rolling: Json) -> Causes:
    amounts = {name: rolling.get(name) for name in ("maxUnavailable", "maxSurge")}
    for name, value in amounts.items():
        yield from _count_or_share(f"spec.strategy.rollingUpdate.{name}", value)
    if all(value in (0, "0", "0%") for value in amounts.values()):
        detail = "may not be 0 when `maxSurge` is 0"
        yield field_errors.invalid("spec.strategy.rollingUpdate.maxUnavailable", 0, detail)


def _count_or_share(path: str, value: object) -> "list[StatusCause]":
    if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
        detail = "a valid percent string must be a numeric string followed by an ending '%'"
        return [field_errors.invalid(path, value, detail)]
    return list(minimum_causes(path, value, 0))
