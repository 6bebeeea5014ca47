"""Matching of webhooks: rules, scopes, versions and selectors."""

from typing import Any

import msgspec
import pytest

from gangline.api.cluster.admission import (
    GROUP,
    RuleWithOperations,
    ValidatingWebhook,
    WebhookClientConfig,
)
from gangline.api.meta.objects import LabelSelector, LabelSelectorRequirement
from gangline.local.apiserver.admission.webhook_match import (
    VALIDATING,
    CompiledWebhook,
    WriteAttributes,
    compile_webhooks,
    match_webhooks,
    object_selector_matches,
)
from gangline.local.apiserver.core.registry import ServedKind

PODS = ServedKind("", "v1", "Pod", "pods")
NODES = ServedKind("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = ServedKind("", "v1", "Namespace", "namespaces", namespaced=False)
OLD = ServedKind("example.com", "v1", "Thing", "things")
NEW = ServedKind("example.com", "v2", "Thing", "things")
OWN = ServedKind(GROUP, "v1", "ValidatingWebhookConfiguration", VALIDATING, namespaced=False)


def a_hook(*rules: RuleWithOperations, **more: Any) -> CompiledWebhook:
    webhook = ValidatingWebhook("a.b.c", WebhookClientConfig(), list(rules), **more)
    body = msgspec.json.encode({"webhooks": [webhook]})
    (hook,) = compile_webhooks(VALIDATING, body)
    return hook


def a_rule(*resources: str, scope: str = "*", **more: Any) -> RuleWithOperations:
    fields = {"operations": ["*"], "api_groups": ["*"], "api_versions": ["*"], **more}
    return RuleWithOperations(**fields, resources=list(resources), scope=scope)


@pytest.mark.parametrize(
    ("rule", "kind", "subresource", "is_meant"),
    [
        (a_rule("pods"), PODS, "", True),
        (a_rule("pods"), PODS, "status", False),
        (a_rule("pods"), NODES, "", False),
        (a_rule("*"), NODES, "", True),
        (a_rule("*"), PODS, "status", False),
        (a_rule("pods/*"), PODS, "", True),
        (a_rule("pods/*"), PODS, "binding", True),
        (a_rule("pods/status"), PODS, "status", True),
        (a_rule("pods/status"), PODS, "binding", False),
        (a_rule("*/status"), NODES, "status", True),
        (a_rule("*/*"), NODES, "status", True),
        (a_rule("*/*"), NODES, "", True),
        (a_rule("*/*"), OWN, "", False),
        (a_rule("*", scope="Cluster"), PODS, "", False),
        (a_rule("*", scope="Cluster"), NAMESPACES, "", True),
        (a_rule("*", scope="Namespaced"), NAMESPACES, "", False),
        (a_rule("*", scope="Namespaced"), PODS, "", True),
        (a_rule("*", operations=["UPDATE", "DELETE"]), PODS, "", False),
        (a_rule("*", operations=["CREATE"]), PODS, "", True),
        (a_rule("*", api_groups=["apps"]), PODS, "", False),
        (a_rule("*", api_groups=[""]), PODS, "", True),
        (a_rule("*", api_versions=["v1beta1"]), PODS, "", False),
    ],
)
def test_a_rule_means_what_it_names(
    rule: RuleWithOperations, kind: ServedKind, subresource: str, is_meant: bool
):
    found = match_webhooks([a_hook(rule)], WriteAttributes("CREATE", kind, subresource), [kind])
    assert bool(found) is is_meant


def test_another_version_of_the_kind_is_meant_too_unless_it_must_be_exact():
    rule = a_rule("things", api_versions=["v1"])
    loose, exact = a_hook(rule), a_hook(rule, match_policy="Exact")
    found = match_webhooks([loose, exact], WriteAttributes("CREATE", NEW, ""), [NEW, OLD])
    assert [(each.hook, each.kind) for each in found] == [(loose, OLD)]


def labelled(**labels: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def test_an_object_is_meant_by_its_labels_before_or_after():
    hook = a_hook(object_selector=LabelSelector(match_labels={"a": "b"}))
    assert object_selector_matches(hook, None, labelled(a="b"))
    assert object_selector_matches(hook, labelled(a="b"), None)
    assert object_selector_matches(hook, labelled(a="b"), labelled(a="c"))
    assert not object_selector_matches(hook, labelled(), labelled(a="c"))
    absent = LabelSelectorRequirement("a", "DoesNotExist")
    without = a_hook(object_selector=LabelSelector(match_expressions=[absent]))
    assert object_selector_matches(without, None, labelled(c="d"))


@pytest.mark.parametrize("meta", [None, "text", {"labels": 3}, {"labels": {"a": 1}}])
def test_labels_of_the_wrong_shape_are_none(meta: Any):
    hook = a_hook(object_selector=LabelSelector(match_labels={"a": "b"}))
    assert not object_selector_matches(hook, None, {"metadata": meta})


def test_a_selector_that_cannot_be_read_selects_nothing():
    broken = LabelSelectorRequirement("a", "Like", ["b"])
    hook = a_hook(object_selector=LabelSelector(match_expressions=[broken]))
    assert not object_selector_matches(hook, None, labelled(a="b"))
