"""Webhook configurations: validation errors and defaults."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from gangline.api.schema.openapi import openapi_schema
from gangline.local.apiserver.admission.webhook_call import VALIDATING, compile_webhooks
from gangline.local.apiserver.machinery.defaults import apply_builtin_defaults
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema
from gangline.local.apiserver.machinery.validation.builtin import validate_create

GROUP = "admissionregistration.k8s.io"
RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
HOOK = {
    "name": "a.example.com",
    "clientConfig": {"url": "https://example.com/x"},
    "rules": [RULE],
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
SERVICE = {"name": "s", "namespace": "n"}
SCHEMA = StructuralSchema(openapi_schema(VALIDATING_WEBHOOK_CONFIGURATIONS.type))


def configuration(*hooks: Any, kind: str = "ValidatingWebhookConfiguration") -> dict[str, Any]:
    obj = {
        "apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": "c"},
        "webhooks": copy.deepcopy(list(hooks)),
    }  # fmt: skip
    apply_builtin_defaults(GROUP, kind, obj)
    return obj


def mistakes(*hooks: Any) -> dict[str, str]:
    obj = configuration(*hooks)
    causes = SCHEMA.validate(obj) or validate_create(
        GROUP, "ValidatingWebhookConfiguration", obj, namespaced=False
    )
    return {cause.field: cause.message for cause in causes}


def hook(**more: Any) -> dict[str, Any]:
    return {**HOOK, **more}


def with_rule(**more: Any) -> dict[str, Any]:
    return hook(rules=[{**RULE, **more}])


def by_service(**more: Any) -> dict[str, Any]:
    return hook(clientConfig={"service": {**SERVICE, **more}})


def by_url(url: str) -> dict[str, Any]:
    return hook(clientConfig={"url": url})


def test_a_right_configuration_has_no_mistakes_and_gets_its_defaults():
    assert mistakes(HOOK, by_service(path="/a/b") | {"name": "b.example.com"}) == {}
    (found,) = configuration(HOOK)["webhooks"]
    assert found["failurePolicy"] == "Fail"
    assert found["matchPolicy"] == "Equivalent"
    assert (found["namespaceSelector"], found["objectSelector"]) == ({}, {})
    assert found["timeoutSeconds"] == 10
    assert found["rules"][0]["scope"] == "*"
    assert "reinvocationPolicy" not in found
    (mutating,) = configuration(by_service(), kind="MutatingWebhookConfiguration")["webhooks"]
    assert mutating["reinvocationPolicy"] == "Never"
    assert mutating["clientConfig"]["service"]["port"] == 443


@pytest.mark.parametrize(
    ("webhook", "field", "message"),
    [
        (hook(name="a"), "name", "at least three segments"),
        (hook(admissionReviewVersions=[]), "admissionReviewVersions", "one of v1, v1beta1"),
        (hook(admissionReviewVersions=["v9"]), "admissionReviewVersions", "at least one of"),
        (hook(admissionReviewVersions=["v1", "v1"]), "admissionReviewVersions[1]", "Duplicate"),
        (
            hook(matchConditions=[{"name": "a", "expression": "object.x =="}]),
            "matchConditions[0].expression",
            "compilation failed",
        ),
        (with_rule(operations=[]), "rules[0].operations", "Required value"),
        (with_rule(operations=["*", "CREATE"]), "rules[0].operations", "other operations"),
        (with_rule(apiGroups=[]), "rules[0].apiGroups", "Required value"),
        (with_rule(apiGroups=["*", "apps"]), "rules[0].apiGroups", "other API groups"),
        (with_rule(resources=[]), "rules[0].resources", "Required value"),
        (with_rule(resources=["*/*", "pods"]), "rules[0].resources", "must not specify other"),
        (with_rule(resources=["*", "pods"]), "rules[0].resources", "without subresources"),
        (
            with_rule(resources=["pods/*", "pods/status"]),
            "rules[0].resources[1]",
            "if 'pods/*' is present, must not specify pods/status",
        ),
        (
            with_rule(resources=["*/status", "pods/status"]),
            "rules[0].resources[1]",
            "if '*/status' is present, must not specify pods/status",
        ),
        (hook(clientConfig={}), "clientConfig", "exactly one of url or service is required"),
        (
            hook(clientConfig={"url": "https://a", "service": SERVICE}),
            "clientConfig",
            "exactly one of url or service is required",
        ),
        (by_url("http://a.example"), "clientConfig.url", "'https' is the only allowed URL scheme"),
        (by_url("https://"), "clientConfig.url", "host must be specified"),
        (by_url("https://u:p@a"), "clientConfig.url", "user information is not permitted"),
        (by_url("https://a/#b"), "clientConfig.url", "fragments are not permitted"),
        (by_url("https://a/?b=c"), "clientConfig.url", "query parameters are not permitted"),
        (by_url("https://a:99999"), "clientConfig.url", "must be a valid URL"),
        (by_url("https://[a"), "clientConfig.url", "must be a valid URL"),
        (by_service(path="x"), "clientConfig.service.path", "must start with a '/'"),
        (by_service(path="/a//b"), "clientConfig.service.path", "segment[1] may not be empty"),
        (by_service(path="/A_"), "clientConfig.service.path", "segment[0]"),
        (
            hook(clientConfig={"url": "https://a", "caBundle": "no base64!"}),
            "clientConfig.caBundle",
            "must be of type byte",
        ),
    ],
)
def test_a_mistake_is_found(webhook: dict[str, Any], field: str, message: str):
    found = mistakes(webhook)
    assert message in found[f"webhooks[0].{field}"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


FIELDS = (*HOOK, "timeoutSeconds", "namespaceSelector", "failurePolicy")
NUMBERS = st.floats(1, 30) | st.integers(1, 30).map(float)


@given(st.sampled_from(sorted(FIELDS)), JSON | NUMBERS)
def test_any_value_of_a_field_is_refused_or_can_be_read_back(name: str, value: Any):
    webhook = hook(**{name: value})
    if not mistakes(webhook):
        assert compile_webhooks(VALIDATING, msgspec.json.encode(configuration(webhook)))


@given(st.sampled_from(sorted(RULE)), JSON)
def test_any_value_in_a_rule_is_refused_or_accepted_without_exception(name: str, value: Any):
    mistakes(with_rule(**{name: value}))
