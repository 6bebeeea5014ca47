"""Changes to pods with scheduling gates: gates go, nodes are narrowed."""

import copy
from typing import Any

import pytest

from gangline.local.apiserver.machinery.validation.workloads import pod_update_causes

GATES = [{"name": "kueue.x-k8s.io/topology"}, {"name": "other"}]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
RACK = {"key": "rack", "operator": "Exists"}


def a_pod(*gates: dict[str, str], **spec: Any) -> dict[str, Any]:
    given = {"schedulingGates": list(gates)} if gates else {}
    return {"spec": {"containers": [{"name": "c", "image": "i"}], **given, **spec}}


def affinity(*terms: dict[str, Any], **more: Any) -> dict[str, Any]:
    required = {REQUIRED: {"nodeSelectorTerms": list(terms)}} if terms else {}
    return {"nodeAffinity": {**required, **more}}


def fields(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before = copy.deepcopy((old, new))
    found = [cause.field for cause in pod_update_causes(old, new)]
    assert (old, new) == before
    return found


def test_gates_can_be_removed_and_not_added() -> None:
    assert not fields(a_pod(*GATES), a_pod(GATES[1]))
    assert not fields(a_pod(*GATES), a_pod())
    assert fields(a_pod(), a_pod(GATES[0])) == ["spec.schedulingGates[0].name"]
    assert fields(a_pod(GATES[0]), a_pod(*GATES)) == ["spec.schedulingGates[1].name"]


def test_node_selector_of_a_gated_pod_can_be_extended_when_its_gate_is_removed() -> None:
    old = a_pod(GATES[0], nodeSelector={"zone": "a"})
    assert not fields(old, a_pod(nodeSelector={"zone": "a", "kubernetes.io/hostname": "n1"}))
    assert fields(old, a_pod(GATES[0], nodeSelector={"zone": "b"})) == ["spec.nodeSelector"]
    assert fields(old, a_pod(GATES[0])) == ["spec.nodeSelector"]


def test_node_selector_of_a_pod_without_gates_cannot_change() -> None:
    assert fields(a_pod(), a_pod(nodeSelector={"zone": "a"})) == ["spec"]


@pytest.mark.parametrize(
    ("former", "terms", "refused"),
    [
        ([], [{"matchExpressions": [ZONE]}], []),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE, RACK]}], []),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE], "matchFields": [RACK]}], []),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [RACK, ZONE]}], ["[0]"]),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE]}, {}], [""]),
        ([{"matchExpressions": [ZONE]}], [], [""]),
        ([{}], [{"matchExpressions": [ZONE]}], ["[0]"]),
    ],
)
def test_required_node_affinity_of_a_gated_pod_can_only_be_narrowed(
    former: list[dict[str, Any]], terms: list[dict[str, Any]], refused: list[str]
) -> None:
    old, new = (a_pod(GATES[0], affinity=affinity(*each)) for each in (former, terms))
    path = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    assert fields(old, new) == [path + place for place in refused]


def test_preferred_node_affinity_of_a_gated_pod_can_be_replaced_and_pod_affinity_cannot() -> None:
    preferred = {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]}
    assert not fields(a_pod(GATES[0]), a_pod(GATES[0], affinity=affinity(**preferred)))
    assert not fields(a_pod(GATES[0], affinity=affinity(**preferred)), a_pod(GATES[0]))
    apart = {"podAntiAffinity": {PREFERRED: []}}
    assert fields(a_pod(GATES[0]), a_pod(GATES[0], affinity=apart)) == ["spec"]
