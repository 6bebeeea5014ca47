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
        ({"minReplicas": 0}, "minReplicas", "greater than or equal to 1"),
        ({"scaleTargetRef": {"kind": "D"}}, "scaleTargetRef.name", "Required value"),
        ({"scaleTargetRef": {"kind": "D", "name": "a/b"}}, "scaleTargetRef.name", "Invalid value"),
        ({"metrics": [{}]}, "metrics[0].type", "must specify a metric source type"),
        ({"metrics": [{"type": "Luck"}]}, "metrics[0].type", "Unsupported value"),
        ({"metrics": [{"type": "Resource"}]}, "metrics[0].resource", "must populate information"),
        ({"metrics": [{**CPU, "pods": {}}]}, "metrics[0].pods", "given metric source only"),
        ({"metrics": target()}, "metrics[0].resource.target.type", "Required value"),
        (
            {"metrics": target(type="Most")},
            "metrics[0].resource.target.type",
            "must be either Utilization, Value, or AverageValue",
        ),
        (
            {"metrics": target(type="Utilization")},
            "metrics[0].resource.target.averageUtilization",
            "must set either",
        ),
        (
            {"metrics": target(type="Utilization", averageUtilization=1, averageValue="1")},
            "metrics[0].resource.target.averageValue",
            "may not set both",
        ),
        (
            {"metrics": target(type="Utilization", averageUtilization=0)},
            "metrics[0].resource.target.averageUtilization",
            "must be greater than 0",
        ),
        (
            {"metrics": target(type="Utilization", averageUtilization="x")},
            "metrics[0].resource.target.averageUtilization",
            "must be greater than 0",
        ),
        (
            {"metrics": target(type="AverageValue", averageValue="0")},
            "metrics[0].resource.target.averageValue",
            "greater than zero",
        ),
        (
            {"behavior": {"scaleUp": {"stabilizationWindowSeconds": 3601}}},
            "behavior.scaleUp.stabilizationWindowSeconds",
            "less than or equal to 3600",
        ),
        (
            {"behavior": {"scaleDown": {"selectPolicy": "Some"}}},
            "behavior.scaleDown.selectPolicy",
            "Unsupported value",
        ),
        (
            {
                "behavior": {
                    "scaleUp": {"policies": [{"type": "X", "value": 1, "periodSeconds": 1}]}
                }
            },
            "behavior.scaleUp.policies[0].type",
            "Unsupported value",
        ),
        (
            {
                "behavior": {
                    "scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 9999}]}
                }
            },
            "behavior.scaleUp.policies[0].periodSeconds",
            "less than or equal to 1800",
        ),
    ],
)
def test_a_mistake_is_found(spec: dict[str, Any], field: str, message: str):
    assert message in mistakes(**spec)[f"spec.{field}"]
