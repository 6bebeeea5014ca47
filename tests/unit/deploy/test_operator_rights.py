"""The operator's rights: the same in all namespaces and in one, and by kind."""

from typing import Any

import pytest

from chart_objects import OPERATOR_ONLY, chart_objects, rights_of
from gangline.api.job_resources import JOB_KINDS


def operator_objects(**values: Any) -> list[dict[str, Any]]:
    """The operator's objects without the role that reads nodes."""
    least = {"readNodes": False, "readClusterRuntimes": False}
    return chart_objects(**{**OPERATOR_ONLY, "operator": least, **values})


def test_roles_of_one_namespace_have_the_rules_of_the_cluster_roles() -> None:
    assert rights_of(operator_objects()) == rights_of(operator_objects(namespaces=["a"]))


def test_roles_of_one_namespace_grant_nothing_cluster_wide() -> None:
    for each in operator_objects(namespaces=["a"]):
        assert not each["kind"].startswith("Cluster")


@pytest.mark.parametrize("resource", ["secrets", "serviceaccounts", "roles", "pods/exec"])
def test_the_rights_of_all_kinds_do_not_include_those_of_few(resource: str) -> None:
    few = {"MPIJob", "ElasticJob", "TrainJob"}
    kinds = [kind.identity for kind in JOB_KINDS if kind.identity not in few]
    assert resource not in {right[1] for right in rights_of(operator_objects(kinds=kinds))}


def test_no_role_grants_everything_or_lets_read_secrets() -> None:
    for group, resource, verb in rights_of(operator_objects()):
        assert "*" not in {group, resource, verb}
        assert resource != "secrets" or verb == "create"
        assert verb not in {"escalate", "bind", "impersonate"}


def test_groups_of_kubernetes_are_a_choice_with_its_flag_and_its_rights() -> None:
    group = ("scheduling.k8s.io", "podgroups", "create")
    assert group not in rights_of(operator_objects())
    chosen = chart_objects(**OPERATOR_ONLY | {"operator": {"podGroups": "kubernetes"}})
    assert group in rights_of(chosen)
    (deployment,) = (each for each in chosen if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--pod-groups=kubernetes" in container["args"]


def test_every_kind_has_its_rights() -> None:
    granted = rights_of(operator_objects())
    for kind in JOB_KINDS:
        assert (kind.resource.group, kind.resource.plural, "watch") in granted
