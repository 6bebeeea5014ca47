"""Which existing objects a Helm release takes over, and in which form."""

from copy import deepcopy
from typing import Any

import pytest

from gangline.deploy.adoption import helm_objects, plan_adoption, without_installers
from gangline.deploy.chart import Chart, Manifest, ReleaseSettings
from gangline.deploy.manifests import ObjectIdentity, identity_of

CHART = Chart.load()
RELEASE = ReleaseSettings("train", "infra")
CRD = ObjectIdentity("CustomResourceDefinition", "", "pytorchjobs.kubeflow.org")
ROLE = ObjectIdentity("ClusterRole", "", "gangline-operator")


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    return helm_objects(CHART, CHART.complete({"kinds": ["PyTorchJob"]}), RELEASE)


def existing(objects: list[Manifest], identity: ObjectIdentity, **metadata: Any) -> dict[Any, Any]:
    found = deepcopy(next(each for each in objects if identity_of(each) == identity))
    found["metadata"] = {"name": identity.name, **metadata}
    return {identity: found}


def test_only_the_marks_of_helm_are_written(objects: list[Manifest]) -> None:
    plan = plan_adoption(existing(objects, CRD), objects, RELEASE)
    assert plan.adopted == [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "pytorchjobs.kubeflow.org",
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {
                    "meta.helm.sh/release-name": "train",
                    "meta.helm.sh/release-namespace": "infra",
                },
            },
        }
    ]


def test_hooks_need_no_marks() -> None:
    found = helm_objects(CHART, CHART.complete({"crds": {"install": False}}), RELEASE)
    assert "ClusterTrainingRuntime" not in {each["kind"] for each in found}


@pytest.mark.parametrize("identity", [CRD, ROLE], ids=str)
def test_what_nobody_owns_is_adopted_and_nothing_is_created(
    objects: list[Manifest], identity: ObjectIdentity
) -> None:
    plan = plan_adoption(existing(objects, identity), objects, RELEASE)
    assert [identity_of(each) for each in plan.adopted] == [identity]
    assert not plan.left


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (
            {
                "annotations": {
                    "meta.helm.sh/release-name": "volcano",
                    "meta.helm.sh/release-namespace": "volcano-system",
                }
            },
            "it belongs to the Helm release volcano in the namespace volcano-system",
        ),
        ({"labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}, "it is of the API server"),
    ],
)
def test_what_others_own_is_left(
    objects: list[Manifest], metadata: dict[str, Any], reason: str
) -> None:
    plan = plan_adoption(existing(objects, ROLE, **metadata), objects, RELEASE)
    assert plan == ([], {ROLE: reason})


def test_a_definition_with_more_fields_is_left(objects: list[Manifest]) -> None:
    found = existing(objects, CRD)
    schema = found[CRD]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["theirs"] = {"type": "string"}
    plan = plan_adoption(found, objects, RELEASE)
    assert plan == ([], {CRD: "has what Gangline's lacks: v1 spec.theirs"})


def test_only_those_who_applied_the_object_give_up_its_fields() -> None:
    left = ["helm", "kube-apiserver", "gangline-operator"]
    installers = ["kubectl-client-side-apply", "kubectl", "gangline-deploy", "before-first-apply"]
    fields = [{"manager": each} for each in (*installers, *left)]
    assert [each["manager"] for each in without_installers(fields)] == left
