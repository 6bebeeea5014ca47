"""The checks before an installation: each finds its problem, and all are named together."""

import json
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from gangline.deploy.chart import Chart, Manifest, ReleaseSettings
from gangline.deploy.crd_compare import lost_fields
from gangline.deploy.manifests import identity_of, release_objects
from gangline.deploy.preflight import InstallationFacts, PreflightResult, check_installation

RELEASE = ReleaseSettings()
CHART = Chart.load()


@cache
def rendered(values: str) -> str:
    complete = CHART.complete({"crds": {"install": False}}, json.loads(values))
    return json.dumps(release_objects(CHART, complete, RELEASE))


def objects(**values: Any) -> list[Manifest]:
    found: list[Manifest] = json.loads(rendered(json.dumps(values)))
    return found


def check(
    facts: InstallationFacts | None = None,
    *,
    keep_crds: bool = False,
    adopt: bool = False,
    **values: Any,
) -> PreflightResult:
    facts = facts or InstallationFacts("v1.31.0", 31)
    return check_installation(facts, objects(**values), RELEASE, keep_crds=keep_crds, adopt=adopt)


def is_refused(result: PreflightResult) -> bool:
    return any(problem.fatal for problem in result.problems)


def facts(**fields: Any) -> InstallationFacts:
    return InstallationFacts(**{"version": "v1.31.0", "minor": 31, **fields})


def existing(kind: str, **metadata: Any) -> InstallationFacts:
    """Facts with one object of the release that exists, with other metadata."""
    found = deepcopy(next(each for each in objects() if each["kind"] == kind))
    found["metadata"] = {"name": found["metadata"]["name"], **metadata}
    return facts(existing={identity_of(found): found})


def test_an_empty_cluster_has_no_problem() -> None:
    result = check()
    assert result.problems == []
    assert not is_refused(result)
    assert not result.skipped


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (facts(version="v1.19.3", minor=19), "Kubernetes v1.19.3 is too old"),
        (facts(denied=["create/patch clusterroles.rbac"]), "you may not create/patch clusterroles"),
        (facts(deployments=[("other", "gangline-operator")]), "installed in the namespace other"),
        (
            existing("ClusterRole"),
            "exists, and 'gangline deploy' has not made it",
        ),
        (
            existing(
                "ClusterRole",
                annotations={
                    "meta.helm.sh/release-name": "train",
                    "meta.helm.sh/release-namespace": "infra",
                },
                labels={"app.kubernetes.io/part-of": "gangline"},
            ),
            "belongs to the Helm release train in the namespace infra",
        ),
    ],
)
def test_each_obstacle_is_named(found: InstallationFacts, message: str) -> None:
    result = check(found)
    assert [message in problem.message for problem in result.problems] == [True]
    assert is_refused(result)


def test_what_is_ours_or_of_the_api_server_is_no_obstacle() -> None:
    assert (
        check(existing("ClusterRole", labels={"app.kubernetes.io/part-of": "gangline"})).problems
        == []
    )
    assert check(facts(deployments=[("gangline-system", "gangline-operator")])).problems == []
    result = check(existing("ClusterRole", labels={"kubernetes.io/bootstrapping": "rbac-defaults"}))
    assert not is_refused(result)
    assert [str(each) for each in result.skipped] == ["ClusterRole gangline-operator"]


def test_objects_without_an_owner_are_taken_over_on_request() -> None:
    assert check(existing("ClusterRole"), adopt=True).problems == []
    marks = {"meta.helm.sh/release-name": "a", "meta.helm.sh/release-namespace": "b"}
    assert is_refused(check(existing("ClusterRole", annotations=marks), adopt=True))


def test_an_upstream_operator_is_reported_and_no_obstacle() -> None:
    result = check(facts(deployments=[("kubeflow", "training-operator")]))
    assert not is_refused(result)
    assert "kubeflow/training-operator runs the same kinds" in result.problems[0].message


def test_pod_security_of_the_namespace_is_applied_to_the_pods() -> None:
    strict = facts(namespace_labels={"pod-security.kubernetes.io/enforce": "restricted"})
    assert check(strict).problems == []
    result = check(strict, podSecurityContext={"runAsNonRoot": None})
    assert len(result.problems) == 2  # operator and scheduler
    assert "enforces Pod Security restricted:latest" in result.problems[0].message
    assert "runAsNonRoot != true" in result.problems[0].message


def test_equal_refusals_are_one_problem_and_lacking_rights_are_not_repeated() -> None:
    roles = [identity_of(each) for each in objects() if each["kind"] == "ClusterRole"]
    refused = {each: f'clusterroles "{each.name}" is forbidden: attempt to grant' for each in roles}
    (problem,) = check(facts(refused=refused)).problems
    assert f"(and {len(roles) - 1} others)" in problem.message
    refused = {roles[0]: 'clusterroles is forbidden: User "u" cannot patch resource'}
    (problem,) = check(facts(refused=refused, denied=["patch clusterroles"])).problems
    assert problem.message == "you may not patch clusterroles"


def test_all_problems_come_together() -> None:
    found = facts(
        minor=18,
        version="v1.18.0",
        denied=["create secrets"],
        deployments=[("other", "gangline-scheduler")],
    )
    assert len(check(found).problems) == 3


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def crd(spec: dict[str, Any], *versions: str) -> dict[str, Any]:
    found = [{"name": v, "schema": {"openAPIV3Schema": spec}} for v in versions or ("v1",)]
    return {"kind": "CustomResourceDefinition", "spec": {"versions": found}}


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (schema(a={"type": "string"}), schema(a={"type": "string"}, b={}), []),
        (schema(spec=schema(a={}, b={})), schema(spec=schema(a={})), ["v1 spec.b"]),
        (
            schema(a={"type": "array", "items": schema(x={})}),
            schema(a={"type": "array", "items": schema()}),
            ["v1 a[].x"],
        ),
        (
            schema(a={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
            schema(a=schema(x={})),
            ["v1 a (any content)"],
        ),
        (
            schema(a=schema(x={})),
            schema(a={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
            [],
        ),
        (schema(metadata={}), schema(), []),
    ],
)
def test_a_definition_that_would_lose_fields_is_recognised(
    theirs: dict[str, Any], ours: dict[str, Any], expected: list[str]
) -> None:
    assert lost_fields(crd(theirs), crd(ours)) == expected


def test_a_version_that_would_be_lost_is_recognised() -> None:
    assert lost_fields(crd(schema(), "v1", "v1beta1"), crd(schema(), "v1")) == ["version v1beta1"]


def test_wider_definitions_of_others_are_kept_only_on_request() -> None:
    every = release_objects(CHART, CHART.complete({}), RELEASE)
    ours = next(each for each in every if each["metadata"]["name"] == "pytorchjobs.kubeflow.org")
    theirs = deepcopy(ours)
    fields = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields["spec"]["properties"]["futureField"] = {"type": "string"}
    found = facts(existing={identity_of(ours): theirs})
    result = check_installation(found, every, RELEASE)
    assert is_refused(result)
    assert "pytorchjobs.kubeflow.org of another installation" in result.problems[0].message
    assert "v1 spec.futureField" in result.problems[0].message
    result = check_installation(found, every, RELEASE, keep_crds=True)
    assert not is_refused(result)
    assert result.skipped == {identity_of(ours)}
    found = facts(existing={identity_of(ours): ours})
    assert check_installation(found, every, RELEASE).problems == []
