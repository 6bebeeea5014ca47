"""How the cluster defines Kubeflow's kinds: names, columns and subresources, as upstream does."""

import json
from typing import Any

import pytest

from gangline.api import crd

KINDS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
}
APPLIED_BY_A_CLIENT = 262_144
"""Bytes that ``kubectl apply`` can keep in its annotation."""

every_kind = pytest.mark.parametrize("kind", KINDS)


def definition(kind: str) -> dict[str, Any]:
    manifest: dict[str, Any] = crd.crd_manifests()[f"kubeflow.org_{kind.lower()}s"]
    return manifest


def version(kind: str) -> dict[str, Any]:
    version, *others = definition(kind)["spec"]["versions"]
    assert isinstance(version, dict)
    assert [other["name"] for other in others] == (["v2beta1"] if kind == "MPIJob" else [])
    return version


@every_kind
def test_names_are_upstreams(kind):
    spec = definition(kind)["spec"]
    names = spec["names"]
    assert (spec["group"], spec["scope"], version(kind)["name"]) == (
        "kubeflow.org",
        "Namespaced",
        "v1",
    )
    assert (names["kind"], names["plural"], names["singular"], names["listKind"]) == (
        kind,
        f"{kind.lower()}s",
        kind.lower(),
        f"{kind}List",
    )


def test_short_names_differ():
    short = [
        name
        for crd_manifest in crd.crd_manifests().values()
        for name in crd_manifest["spec"]["names"].get("shortNames", [])
    ]
    assert len(set(short)) == len(short)


@every_kind
def test_upstreams_columns_come_first(kind):
    columns = version(kind)["additionalPrinterColumns"]
    narrow = [
        (column["name"], column["jsonPath"]) for column in columns if not column.get("priority")
    ]
    assert narrow == [
        ("State", ".status.conditions[-1:].type"),
        ("Age", ".metadata.creationTimestamp"),
    ]


@every_kind
def test_the_roles_are_required_and_everything_is_explained(kind):
    spec = version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["required"] == [KINDS[kind]]
    assert all(field["description"] for field in spec["properties"].values())


@every_kind
def test_a_client_can_apply_the_definition(kind):
    assert len(json.dumps(definition(kind))) < APPLIED_BY_A_CLIENT
