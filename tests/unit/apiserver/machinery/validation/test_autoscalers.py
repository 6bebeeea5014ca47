"""Autoscalers: validation errors and defaults."""

import copy
from typing import Any

import pytest

from gangline.local.apiserver.machinery.defaults import apply_builtin_defaults
from gangline.local.apiserver.machinery.validation.builtin import validate_create

CPU = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}
SPEC = {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3, "metrics": [CPU]}


def a_scaler(**spec: Any) -> dict[str, Any]:
    obj = {"metadata": {"name": "a", "namespace": "n"}, "spec": copy.deepcopy({**SPEC, **spec})}
    apply_builtin_defaults("autoscaling", "HorizontalPodAutoscaler", obj)
    return obj


def mistakes(**spec: Any) -> dict[str, str]:
    causes = validate_create(
        "autoscaling", "HorizontalPodAutoscaler", a_scaler(**spec), namespaced=True
    )
    return {cause.field: cause.message for cause in causes}


def target(**more: Any) -> list[dict[str, Any]]:
    return [{"type": "Resource", "resource": {"name": "cpu", "target": more}}]


def test_what_is_left_open_is_filled_in():
    assert mistakes() == {}
    spec = a_scaler(metrics=[], behavior={"scaleUp": {"stabilizationWindowSeconds": 9}})["spec"]
    assert spec["minReplicas"] == 1
    assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 80
    assert spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 9
    assert len(spec["behavior"]["scaleUp"]["policies"]) == 2
    assert spec["behavior"]["scaleDown"]["selectPolicy"] == "Max"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"maxReplicas": 0}, "maxReplicas", "must be greater than 0"),
        ({"minReplicas": 4}, "maxReplicas", "greater than or equal to `minReplicas`"),
        ({"metrics": [{}]}, "metrics[0].type", "must specify a metric source type"),
        ({"metrics": [{"type": "Luck"}]}, "metrics[0].type", "Unsupported value"),
        ({"metrics": [{"type": "Resource"}]}, "metrics[0].resource", "must populate information"),
        ({"metrics": [{**CPU, "pods": {}}]}, "metrics[0].pods", "given metric source only"),
        ({"metrics": target()}, "metrics[0].resource.target.type", "Required value"),
    ],
)
def test_a_mistake_is_found(spec: dict[str, Any], field: str, message: str):
    assert message in mistakes(**spec)[f"spec.{field}"]


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"type": "Most"}, "type", "must be either Utilization, Value, or AverageValue"),
        ({"type": "Utilization"}, "averageUtilization", "must set either"),
        (
            {"type": "Utilization", "averageUtilization": 1, "averageValue": "1"},
            "",
            "may not set both",
        ),
        ({"type": "Utilization", "averageUtilization": 0}, "averageUtilization", "greater than 0"),
        (
            {"type": "Utilization", "averageUtilization": "x"},
            "averageUtilization",
            "greater than 0",
        ),
        ({"type": "AverageValue", "averageValue": "0"}, "averageValue", "greater than zero"),
    ],
)
def test_a_mistake_in_a_target_is_found(given: dict[str, Any], field: str, message: str):
    found = mistakes(metrics=target(**given))
    assert message in found[f"spec.metrics[0].resource.target.{field}".removesuffix(".")]
