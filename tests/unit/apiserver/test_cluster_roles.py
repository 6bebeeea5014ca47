"""Built-in roles: their content, reconciliation and aggregation."""

from typing import Any

from chart_objects import OFF, chart_objects, rights_of
from gangline.local.apiserver.auth.builtin_roles import (
    AUTOUPDATE,
    builtin_bindings,
    builtin_roles,
)
from gangline.local.apiserver.auth.rules import AccessAttributes, rule_allows
from gangline.local.apiserver.cluster_roles import (
    aggregated_rules,
    reconcile_binding,
    reconcile_role,
    rules_to_keep,
)

ROLES = {role["metadata"]["name"]: role for role in builtin_roles()}
BINDINGS = {binding["metadata"]["name"]: binding for binding in builtin_bindings()}
EXTRA = {"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}


def stored(name: str, *rules: Any, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "rules": list(rules)}


def test_a_current_role_is_unchanged() -> None:
    for role in ROLES.values():
        assert reconcile_role(role, role) == role
    for binding in BINDINGS.values():
        assert reconcile_binding(binding, binding) == binding


def test_missing_rules_are_added_and_others_stay() -> None:
    expected = ROLES["system:basic-user"]
    merged = reconcile_role(stored("system:basic-user", EXTRA, expected["rules"][0]), expected)
    assert merged["rules"] == [EXTRA, *expected["rules"]]
    assert merged["metadata"]["annotations"] == {AUTOUPDATE: "true"}


def test_a_protected_role_is_unchanged() -> None:
    role = stored("view", EXTRA, annotations={AUTOUPDATE: "false"})
    assert reconcile_role(role, ROLES["view"]) == role
    assert rules_to_keep(role) == []


def test_rules_of_administrators_are_kept_when_a_role_aggregates_others() -> None:
    assert rules_to_keep(stored("view", EXTRA)) == [EXTRA]
    merged = reconcile_role(stored("view", EXTRA), ROLES["view"])
    assert merged["aggregationRule"] == ROLES["view"]["aggregationRule"]
    assert merged["rules"] == []


def test_subjects_are_added_and_another_role_means_a_new_binding() -> None:
    expected = BINDINGS["system:discovery"]
    other = {"kind": "User", "name": "u"}
    merged = reconcile_binding({**expected, "subjects": [other]}, expected)
    assert merged is not None
    assert merged["subjects"] == [other, *expected["subjects"]]
    elsewhere = {**expected, "roleRef": {**expected["roleRef"], "name": "edit"}}
    assert reconcile_binding(elsewhere, expected) is None


def test_view_gives_no_access_that_gives_further_access() -> None:
    aggregated = aggregated_rules(ROLES["view"], ROLES.values())
    assert aggregated
    for resource, subresource in (
        ("secrets", ""), ("serviceaccounts", "token"), ("pods", "exec"), ("pods", "attach"),
        ("pods", "portforward"), ("pods", "proxy"), ("services", "proxy"), ("nodes", "proxy"),
    ):  # fmt: skip
        for verb in ("get", "list", "watch", "create"):
            attributes = AccessAttributes(verb, "", resource, subresource)
            assert not any(rule_allows(rule, attributes) for rule in aggregated), attributes
    verbs = {verb for rule in aggregated for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_a_role_does_not_aggregate_itself_and_an_invalid_selector_selects_nothing() -> None:
    label = {"labels": {"a": "b"}}
    selectors = [{"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "a"}]}]
    gathering = stored("r", EXTRA, **label) | {
        "aggregationRule": {"clusterRoleSelectors": selectors}
    }
    other = stored("s", {**EXTRA, "verbs": ["list"]}, **label)
    assert aggregated_rules(gathering, [gathering, other]) == other["rules"]
    assert aggregated_rules(other, [gathering, other]) is None


def test_deployed_roles_are_those_of_the_embedded_cluster() -> None:
    objects = chart_objects(operator=OFF, scheduler=OFF)
    deployed = {each["metadata"]["name"]: each for each in objects if "rules" in each}
    embedded = {role["metadata"]["name"]: role for role in builtin_roles()}
    assert deployed.keys() == {name for name in embedded if name.startswith("gangline:")}
    for name, role in deployed.items():
        assert rights_of([role]) == rights_of([embedded[name]])
        prefix = "rbac.authorization.k8s.io/"
        labels = {k: v for k, v in role["metadata"]["labels"].items() if k.startswith(prefix)}
        assert labels
        assert labels.items() <= embedded[name]["metadata"]["labels"].items()
