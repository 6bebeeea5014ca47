"""Validation of HorizontalPodAutoscalers in their stored form (autoscaling/v2)."""

from typing import Any

from gangline.api.autoscaling import METRIC_TYPES, TARGET_TYPES
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import indexed
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    minimum_causes,
    rule_causes,
    check_path_segment,
)
from gangline.local.apiserver.machinery.resource_validation import quantity_causes
from gangline.local.apiserver.machinery.schemas import Json

METRIC_SOURCES = {kind: kind[0].lower() + kind[1:] for kind in METRIC_TYPES}
MAX_STABILIZATION_WINDOW_S = 3600
MAX_POLICY_PERIOD_S = 1800


def autoscaler_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    low, high = spec.get("minReplicas"), spec.get("maxReplicas")
    yield from minimum_causes("spec.minReplicas", low, 1)
    if isinstance(high, int) and high < 1:
        yield field_errors.invalid("spec.maxReplicas", high, "must be greater than 0")
    elif isinstance(high, int) and isinstance(low, int) and high < low:
        detail = "must be greater than or equal to `minReplicas`"
        yield field_errors.invalid("spec.maxReplicas", high, detail)
    target = subobject(spec, "scaleTargetRef")
    for name in ("kind", "name"):
        value = target.get(name)
        if not value:
            yield field_errors.required(f"spec.scaleTargetRef.{name}")
        yield from rule_causes(check_path_segment, f"spec.scaleTargetRef.{name}", value)
    for index, metric in enumerate(iter_objects(spec.get("metrics"))):
        yield from _metric(indexed("spec.metrics", index), metric)
    for direction in ("scaleUp", "scaleDown"):
        path = f"spec.behavior.{direction}"
        yield from _rules(path, subobject(spec, "behavior", direction))


def _metric(path: str, metric: Json) -> Causes:
    kind = metric.get("type")
    if not kind:
        yield field_errors.required(f"{path}.type", "must specify a metric source type")
        return
    if kind not in METRIC_SOURCES:
        yield field_errors.unsupported(f"{path}.type", kind, METRIC_TYPES)
        return
    for source in METRIC_SOURCES.values():
        if source == METRIC_SOURCES[kind] and source not in metric:
            detail = "must populate information for the given metric source"
            yield field_errors.required(f"{path}.{source}", detail)
        elif source != METRIC_SOURCES[kind] and source in metric:
            detail = "must populate the given metric source only"
            yield field_errors.forbidden(f"{path}.{source}", detail)
    given = subobject(metric, METRIC_SOURCES[kind])
    if not given:
        return
    yield from _target(f"{path}.{METRIC_SOURCES[kind]}.target", subobject(given, "target"))
    if "esource" in kind:
        yield from _resource(f"{path}.{METRIC_SOURCES[kind]}", given)


def _resource(path: str, given: Json) -> Causes:
    if not given.get("name"):
        yield field_errors.required(f"{path}.name", "must specify a resource name")
    target = subobject(given, "target")
    by_share, by_amount = "averageUtilization" in target, "averageValue" in target
    if not by_share and not by_amount:
        detail = "must set either a target raw value or a target utilization"
        yield field_errors.required(f"{path}.target.averageUtilization", detail)
    elif by_share and by_amount:
        detail = "may not set both a target raw value and a target utilization"
        yield field_errors.forbidden(f"{path}.target.averageValue", detail)


def _target(path: str, target: Json) -> Causes:
    kind = target.get("type")
    if not kind:
        yield field_errors.required(f"{path}.type", "must specify a metric target type")
    elif kind not in TARGET_TYPES:
        detail = "must be either Utilization, Value, or AverageValue"
        yield field_errors.invalid(f"{path}.type", kind, detail)
    for name in ("value", "averageValue"):
        if name in target:
            yield from quantity_causes(f"{path}.{name}", target[name], positive=True)
    share: Any = target.get("averageUtilization")
    if share is not None and (not isinstance(share, int) or share < 1):
        # A value of autoscaling/v1 was converted: the schema did not check its type.
        yield field_errors.invalid(f"{path}.averageUtilization", share, "must be greater than 0")


def _rules(path: str, rules: Json) -> Causes:
    window = rules.get("stabilizationWindowSeconds")
    yield from minimum_causes(f"{path}.stabilizationWindowSeconds", window, 0)
    if isinstance(window, int) and window > MAX_STABILIZATION_WINDOW_S:
        detail = f"must be less than or equal to {MAX_STABILIZATION_WINDOW_S}"
        yield field_errors.invalid(f"{path}.stabilizationWindowSeconds", window, detail)
    choice = rules.get("selectPolicy")
    if choice is not None and choice not in ("Max", "Min", "Disabled"):
        yield field_errors.unsupported(f"{path}.selectPolicy", choice, ("Disabled", "Max", "Min"))
    for index, policy in enumerate(iter_objects(rules.get("policies"))):
        where = indexed(f"{path}.policies", index)
        if policy.get("type") not in ("Pods", "Percent"):
            yield field_errors.unsupported(f"{where}.type", policy.get("type"), ("Percent", "Pods"))
        for name in ("value", "periodSeconds"):
            if isinstance(amount := policy.get(name), int) and amount < 1:
                yield field_errors.invalid(f"{where}.{name}", amount, "must be greater than zero")
        if isinstance(policy.get("periodSeconds"), int) and (
            policy["periodSeconds"] > MAX_POLICY_PERIOD_S
        ):
            detail = f"must be less than or equal to {MAX_POLICY_PERIOD_S}"
            yield field_errors.invalid(f"{where}.periodSeconds", policy["periodSeconds"], detail)
