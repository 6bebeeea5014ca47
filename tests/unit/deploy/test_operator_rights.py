"""The operator's rights: the same in all namespaces and in one, and split by kind."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.api.job_resources import JOB_KINDS

BY_KIND = ("rbac", "rbac-mpi", "rbac-elastic", "rbac-train")
FOLDER = Path(__file__).parents[3] / "deploy" / "operator"


def rules(file: Path) -> list[dict[str, Any]]:
    """The rules of a file's only role."""
    (role,) = [each for each in yaml.safe_load_all(file.read_text()) if "rules" in each]
    assert isinstance(role["rules"], list)
    return role["rules"]


def rights(file: Path) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every right."""
    return {
        (group, resource, verb)
        for rule in rules(file)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("name", BY_KIND)
def test_roles_of_one_namespace_have_the_rules_of_the_cluster_roles(name: str) -> None:
    assert rules(FOLDER / f"{name}.yaml") == rules(FOLDER / "namespaced" / f"{name}.yaml")


def test_roles_of_one_namespace_grant_nothing_cluster_wide() -> None:
    for file in (FOLDER / "namespaced").glob("*.yaml"):
        for manifest in yaml.safe_load_all(file.read_text()):
            assert manifest["kind"] in {"Role", "RoleBinding"}
            assert "namespace" not in manifest["metadata"]


@pytest.mark.parametrize("resource", ["secrets", "serviceaccounts", "roles", "pods/exec"])
def test_the_rights_of_all_kinds_do_not_include_those_of_few(resource: str) -> None:
    assert resource not in {right[1] for right in rights(FOLDER / "rbac.yaml")}


def test_no_file_grants_everything_or_lets_read_secrets() -> None:
    for file in FOLDER.glob("**/rbac*.yaml"):
        for group, resource, verb in rights(file):
            assert "*" not in {group, resource, verb}
            assert resource != "secrets" or verb == "create"
            assert verb not in {"escalate", "bind", "impersonate"}


def test_every_kind_has_its_rights_in_one_file() -> None:
    files = [FOLDER / f"{name}.yaml" for name in BY_KIND]
    for kind in JOB_KINDS:
        wanted = kind.resource
        granting = [
            file.name for file in files if (wanted.group, wanted.plural, "watch") in rights(file)
        ]
        assert len(granting) == 1, (wanted.plural, granting)
