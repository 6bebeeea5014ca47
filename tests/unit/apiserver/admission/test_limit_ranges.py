"""LimitRanges: defaults of containers, and bounds of pods and claims."""

from typing import Any

import pytest

from gangline.local.apiserver.admission.limit_ranges import (
    apply_limit_ranges,
    violated_bounds,
)
from gangline.local.apiserver.machinery.defaults import apply_builtin_defaults
from gangline.local.apiserver.machinery.validation.builtin import limit_range_causes


def limit_range(type_: str = "Container", **amounts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"limits": [{"type": type_, **amounts}]}}


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": f"c{n}", "resources": r} for n, r in enumerate(containers)]
    return {"metadata": {"name": "p"}, "spec": {"containers": named}}


def test_containers_get_the_amounts_that_they_do_not_name():
    bounds = limit_range(max={"cpu": "2", "memory": "1Gi"}, min={"cpu": "1"},
                         default={"memory": "512Mi"})  # fmt: skip
    apply_builtin_defaults("", "LimitRange", bounds)
    assert bounds["spec"]["limits"][0]["default"] == {"cpu": "2", "memory": "512Mi"}
    assert bounds["spec"]["limits"][0]["defaultRequest"] == {"cpu": "2", "memory": "512Mi"}
    made = pod({}, {"requests": {"cpu": "1"}, "limits": {"cpu": "1500m"}})
    apply_limit_ranges([bounds], made)
    first, second = (container["resources"] for container in made["spec"]["containers"])
    assert first == {name: {"cpu": "2", "memory": "512Mi"} for name in ("requests", "limits")}
    assert second["requests"] == {"cpu": "1", "memory": "512Mi"}
    assert second["limits"] == {"cpu": "1500m", "memory": "512Mi"}
    assert "memory limit for container c1" in str(made["metadata"]["annotations"])
    assert violated_bounds([bounds], "Pod", made) == []


REQUEST_2 = {"requests": {"cpu": "2"}}
BOTH_2 = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}


@pytest.mark.parametrize(
    ("bounds", "containers", "violated"),
    [
        (limit_range(max={"cpu": "1"}), [BOTH_2],
         "maximum cpu usage per Container is 1, but limit is 2"),
        (limit_range(max={"cpu": "1"}), [REQUEST_2],
         "maximum cpu usage per Container is 1. No limit is specified"),
        (limit_range(max={"cpu": "2"}), [BOTH_2], ""),
        (limit_range(min={"cpu": "3"}), [BOTH_2],
         "minimum cpu usage per Container is 3, but request is 2"),
        (limit_range(min={"cpu": "3"}), [{}],
         "minimum cpu usage per Container is 3. No request is specified"),
        (limit_range("Pod", max={"cpu": "3"}), [BOTH_2, BOTH_2],
         "maximum cpu usage per Pod is 3, but limit is 4"),
        (limit_range("Pod", max={"cpu": "4"}), [BOTH_2, BOTH_2], ""),
        (limit_range(maxLimitRequestRatio={"cpu": "2"}), [{**REQUEST_2, "limits": {"cpu": "5"}}],
         "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"),
        (limit_range(maxLimitRequestRatio={"cpu": "2"}),
         [{**REQUEST_2, "limits": {"cpu": "4"}}], ""),
    ],
)  # fmt: skip
def test_pods_are_within_all_bounds(
    bounds: dict[str, Any], containers: list[dict[str, Any]], violated: str
):
    expected = [f"{violated} (LimitRange r)"] if violated else []
    assert violated_bounds([bounds], "Pod", pod(*containers)) == expected


def test_claims_are_within_all_bounds():
    bounds = limit_range("PersistentVolumeClaim", max={"storage": "2Gi"})
    claim = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    (violated,) = violated_bounds([bounds], "PersistentVolumeClaim", claim)
    assert "maximum storage usage per PersistentVolumeClaim is 2Gi, but" in violated


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (limit_range(min={"cpu": "2"}, max={"cpu": "1"}), "spec.limits[0].min[cpu]"),
        (limit_range(default={"cpu": "2"}, max={"cpu": "1"}), "spec.limits[0].default[cpu]"),
        (limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "1"}),
         "spec.limits[0].defaultRequest[cpu]"),
        (limit_range("Pod", default={"cpu": "2"}), "spec.limits[0].default"),
        (limit_range("PersistentVolumeClaim", max={"cpu": "2"}), "spec.limits[0]"),
        (limit_range(maxLimitRequestRatio={"cpu": "500m"}),
         "spec.limits[0].maxLimitRequestRatio[cpu]"),
    ],
)  # fmt: skip
def test_amounts_that_contradict_each_other_are_refused(bounds: dict[str, Any], field: str):
    assert [cause.field for cause in limit_range_causes(bounds)] == [field]
