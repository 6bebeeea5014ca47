"""Validation of roles and bindings, after their defaults are set."""

from typing import Any

import pytest

from gangline.local.apiserver.machinery.defaults.builtin import apply_builtin_defaults
from gangline.local.apiserver.machinery.validation.builtin import validate_create, validate_update

RBAC = "rbac.authorization.k8s.io"


def fields(kind: str, **content: Any) -> list[str]:
    """Return the fields with errors of a new object."""
    obj = {"metadata": {"name": "r", "namespace": "n"}, **content}
    if kind.startswith("Cluster"):
        del obj["metadata"]["namespace"]
    apply_builtin_defaults(RBAC, kind, obj)
    causes = validate_create(RBAC, kind, obj, not kind.startswith("Cluster"))
    return [cause.field for cause in causes]


@pytest.mark.parametrize(
    ("kind", "rule", "expected"),
    [
        ("Role", {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}, []),
        ("Role", {"apiGroups": [""], "resources": ["pods"], "verbs": []}, ["rules[0].verbs"]),
        ("Role", {"resources": ["pods"], "verbs": ["get"]}, ["rules[0].apiGroups"]),
        ("Role", {"apiGroups": [""], "verbs": ["get"]}, ["rules[0].resources"]),
        ("Role", {"nonResourceURLs": ["/a"], "verbs": ["get"]}, ["rules[0].nonResourceURLs"]),
        ("ClusterRole", {"nonResourceURLs": ["/a"], "verbs": ["get"]}, []),
        (
            "ClusterRole",
            {"nonResourceURLs": ["/a"], "resources": ["pods"], "verbs": ["get"]},
            ["rules[0].nonResourceURLs"],
        ),
    ],
)
def test_rules(kind: str, rule: dict[str, Any], expected: list[str]) -> None:
    assert fields(kind, rules=[rule]) == expected


def test_an_aggregation_rule_selects_something() -> None:
    found = fields("ClusterRole", aggregationRule={"clusterRoleSelectors": []})
    assert found == ["aggregationRule.clusterRoleSelectors"]


@pytest.mark.parametrize(
    ("kind", "subject", "expected"),
    [
        ("RoleBinding", {"kind": "User", "name": "u", "apiGroup": ""}, []),
        ("RoleBinding", {"kind": "ServiceAccount", "name": "a"}, []),
        ("ClusterRoleBinding", {"kind": "ServiceAccount", "name": "a"}, ["subjects[0].namespace"]),
        ("RoleBinding", {"kind": "Group", "name": ""}, ["subjects[0].name"]),
        ("RoleBinding", {"kind": "Thing", "name": "a"}, ["subjects[0].kind"]),
        ("RoleBinding", {"kind": "User", "name": "a", "apiGroup": "x"}, ["subjects[0].apiGroup"]),
    ],
)
def test_subjects(kind: str, subject: dict[str, Any], expected: list[str]) -> None:
    reference = {"kind": "ClusterRole", "name": "view", "apiGroup": ""}
    assert fields(kind, roleRef=reference, subjects=[subject]) == expected


@pytest.mark.parametrize(
    ("kind", "reference", "expected"),
    [
        ("RoleBinding", {"kind": "Role", "name": "r"}, []),
        ("ClusterRoleBinding", {"kind": "Role", "name": "r"}, ["roleRef.kind"]),
        ("RoleBinding", {"kind": "Role", "name": "a/b"}, ["roleRef.name"]),
        ("RoleBinding", {"kind": "Role", "name": ""}, ["roleRef.name"]),
        ("RoleBinding", {"kind": "Role", "name": "r", "apiGroup": "x"}, ["roleRef.apiGroup"]),
    ],
)
def test_role_references(kind: str, reference: dict[str, str], expected: list[str]) -> None:
    assert fields(kind, roleRef=reference) == expected


def test_role_reference_is_immutable() -> None:
    def bound(name: str) -> dict[str, Any]:
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        return {"metadata": {"name": "b"}, "roleRef": reference}

    for kind in ("RoleBinding", "ClusterRoleBinding"):
        causes = validate_update(RBAC, kind, bound("view"), bound("edit"), False)
        assert [cause.field for cause in causes] == ["roleRef"]
        assert validate_update(RBAC, kind, bound("view"), bound("view"), False) == []
