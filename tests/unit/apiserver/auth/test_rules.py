"""What policy rules allow, and which rules cover others."""

from itertools import islice
from typing import Any

import pytest

from gangline.local.apiserver.auth.rules import (
    FULL_AUTHORITY,
    AccessAttributes,
    format_rule,
    index_rule,
    merge_rules,
    names_of,
    rule_allows,
    subject_names,
    uncovered_rules,
)
from gangline.local.apiserver.core.request import RequestUser


def rule(group: str, resources: str, verbs: str, *names: str) -> dict[str, Any]:
    found = {"apiGroups": [group], "resources": resources.split(","), "verbs": verbs.split(",")}
    return found | ({"resourceNames": list(names)} if names else {})


def paths(*listed: str) -> dict[str, Any]:
    return {"nonResourceURLs": list(listed), "verbs": ["get"]}


@pytest.mark.parametrize(
    ("held", "attributes", "allowed"),
    [
        (rule("", "pods", "get"), AccessAttributes("get", "", "pods"), True),
        (rule("", "pods", "get"), AccessAttributes("get", "", "pods", "log"), False),
        (rule("", "*/log", "get"), AccessAttributes("get", "", "pods", "log"), True),
        (rule("", "*", "get"), AccessAttributes("get", "", "pods", "exec"), True),
        (rule("*", "pods", "*"), AccessAttributes("list", "apps", "pods"), True),
        (rule("", "pods", "get", "a"), AccessAttributes("get", "", "pods", name="a"), True),
        (rule("", "pods", "get", "a"), AccessAttributes("get", "", "pods", name="b"), False),
        (rule("", "pods", "list", "a"), AccessAttributes("list", "", "pods"), False),
        (paths("/metrics"), AccessAttributes("get", path="/metrics"), True),
        (paths("/metrics"), AccessAttributes("get", path="/metrics/slis"), False),
        (paths("/healthz/*"), AccessAttributes("get", path="/healthz/etcd"), True),
        (paths("*"), AccessAttributes("post", path="/metrics"), False),
        (rule("*", "*", "*"), AccessAttributes("get", path="/metrics"), False),
    ],
)
def test_rule_allows(held: dict[str, Any], attributes: AccessAttributes, allowed: bool) -> None:
    assert rule_allows(held, attributes) is allowed
    assert rule_allows(index_rule(held), attributes) is allowed


@pytest.mark.parametrize(
    ("held", "granted", "missing"),
    [
        ([rule("", "pods,secrets", "get,list")], [rule("", "secrets", "get")], []),
        # Two rules together cover each part of a third one.
        ([rule("", "pods", "get"), rule("", "pods", "list")], [rule("", "pods", "get,list")], []),
        ([rule("", "pods", "get", "a")], [rule("", "pods", "get")], [rule("", "pods", "get")]),
        ([rule("", "pods", "get")], [rule("", "pods", "get", "a")], []),
        ([rule("", "pods", "get")], [rule("", "*", "get")], [rule("", "*", "get")]),
        ([rule("", "pods", "get")], [rule("*", "pods", "get")], [rule("*", "pods", "get")]),
        ([rule("", "pods", "get")], [rule("", "pods", "*")], [rule("", "pods", "*")]),
        ([rule("", "*/scale", "get")], [rule("", "pods/scale", "get")], []),
        ([rule("", "pods", "get")], [rule("", "pods/log", "get")], [rule("", "pods/log", "get")]),
        ([paths("/a/*")], [paths("/a/b", "/a/*", "/c")], [paths("/c")]),
        ([rule("*", "*", "*")], list(FULL_AUTHORITY), [FULL_AUTHORITY[1]]),
        (FULL_AUTHORITY, [*FULL_AUTHORITY, rule("a", "b", "c", "d"), paths("/x")], []),
        ([], [rule("", "pods", "get,list")], [rule("", "pods", "get"), rule("", "pods", "list")]),
    ],
)
def test_uncovered_rules(held: Any, granted: Any, missing: Any) -> None:
    assert list(uncovered_rules(held, granted)) == missing


def test_merged_parts_of_a_rule_are_one_rule_again() -> None:
    [merged] = merge_rules(uncovered_rules([], [rule("", "pods", "get,list", "a")]))
    assert merged == rule("", "pods", "get,list", "a")
    assert format_rule(merged) == (
        '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get" "list"]}'
    )


@pytest.mark.parametrize("held", [[], [rule("a0", "a0", "*"), rule("*", "a1", "a2")]])
def test_long_lists_are_compared_without_their_product(held: Any) -> None:
    many = [f"a{number}" for number in range(1000)]
    wide = {"apiGroups": many, "resources": many, "verbs": many}
    missing = uncovered_rules(held, [wide])
    assert len(list(islice(missing, 100))) == 100
    covering = [rule("*", "*", "*"), rule("a0", "a0", "a0")]
    assert not list(uncovered_rules(covering, [wide]))


@pytest.mark.parametrize(
    ("subject", "matches"),
    [
        ({"kind": "User", "name": "anna"}, True),
        ({"kind": "User", "name": "staff"}, False),
        ({"kind": "Group", "name": "staff"}, True),
        ({"kind": "Group", "name": "anna"}, False),
        ({"kind": "Other", "name": "anna"}, False),
        ({"kind": "User"}, False),
        ({"kind": "ServiceAccount", "name": "bot", "namespace": "x"}, False),
    ],
)
def test_subjects_of_a_binding(subject: dict[str, Any], matches: bool) -> None:
    anna = names_of(RequestUser("anna", ("staff",)))
    assert (not anna.isdisjoint(subject_names([subject], "default"))) is matches


@pytest.mark.parametrize("given", [{}, {"namespace": "x"}])
def test_a_service_account_is_that_of_the_binding_unless_named(given: dict[str, str]) -> None:
    account = names_of(RequestUser("system:serviceaccount:x:bot"))
    subject = {"kind": "ServiceAccount", "name": "bot", **given}
    assert not account.isdisjoint(subject_names([subject], "x"))
    assert account.isdisjoint(subject_names([subject], "y")) is not bool(given)
    assert account.isdisjoint(subject_names([subject], "")) is not bool(given)
