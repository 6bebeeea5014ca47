"""Workloads and PodGroups of Kubernetes: what is refused, on creation and on changes."""

from typing import Any

import pytest

from gangline.local.apiserver.machinery.validation.builtin import validate_create, validate_update

GROUP = "scheduling.k8s.io"
GANG: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
META = {"name": "x", "namespace": "n"}


def refused(kind: str, spec: dict[str, Any]) -> list[str]:
    obj = {"metadata": META, "spec": spec}
    causes = validate_create(GROUP, kind, obj, namespaced=True)
    return [f"{cause.field}: {cause.message}" for cause in causes]


def refused_change(kind: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = ({"metadata": META, "spec": spec} for spec in (old, new))
    causes = validate_update(GROUP, kind, before, after, namespaced=True)
    return [cause.field for cause in causes]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedulingPolicy": {}}, "spec.schedulingPolicy: Invalid value: \"\": must specify one"),
        ({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, "exactly one of `basic`"),
    ],
)  # fmt: skip
def test_wrong_pod_group_is_refused_with_its_field(fields: dict[str, Any], message: str) -> None:
    (cause,) = refused("PodGroup", GANG | fields)
    assert message in cause
    assert refused("PodGroup", GANG) == []


def test_only_min_count_of_a_pod_group_may_change() -> None:
    more = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert refused_change("PodGroup", GANG, more) == []
    for other in ({"schedulingPolicy": {"basic": {}}}, GANG | {"disruptionMode": {"all": {}}}):
        assert refused_change("PodGroup", GANG, other) == [f"spec.{list(other)[-1]}"]


def test_templates_of_a_workload_have_names_and_do_not_change() -> None:
    one, two = ({"name": name, **GANG} for name in ("one", "two"))
    assert refused("Workload", {"podGroupTemplates": [one, two]}) == []
    assert "Required value" in refused("Workload", {})[0]
    (duplicate,) = refused("Workload", {"podGroupTemplates": [one, one]})
    assert duplicate.startswith("spec.podGroupTemplates[1].name: Duplicate value")
    many = [{"name": f"t{index}", **GANG} for index in range(9)]
    assert "at most 8" in refused("Workload", {"podGroupTemplates": many})[0]
    scaled = {**one, "schedulingPolicy": {"gang": {"minCount": 5}}}
    for templates, fields in (([scaled], []), ([one, two], ["spec.podGroupTemplates"])):
        changed = {"podGroupTemplates": templates}
        assert refused_change("Workload", {"podGroupTemplates": [one]}, changed) == fields
