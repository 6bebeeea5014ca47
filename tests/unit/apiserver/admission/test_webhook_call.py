"""Matching of webhooks: rules, scopes, versions and selectors."""

import base64
import json
from typing import Any

import msgspec
import pytest

from gangline.api.cluster.admission import (
    GROUP,
    MutatingWebhook,
    RuleWithOperations,
    ValidatingWebhook,
    WebhookClientConfig,
)
from gangline.api.meta.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    Status,
    StatusCause,
    StatusDetails,
)
from gangline.api.meta.selectors import EVERYTHING
from gangline.local.apiserver.admission.webhook_call import (
    VALIDATING,
    CompiledWebhook,
    ReviewInput,
    WebhookError,
    WriteAttributes,
    compile_webhooks,
    decode_response,
    denial_error,
    encode_review,
    match_webhooks,
    object_selector_matches,
    patch_operations,
    request_options,
)
from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

PODS = ServedKind("", "v1", "Pod", "pods")
NODES = ServedKind("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = ServedKind("", "v1", "Namespace", "namespaces", namespaced=False)
OLD = ServedKind("example.com", "v1", "Thing", "things")
NEW = ServedKind("example.com", "v2", "Thing", "things")
OWN = ServedKind(GROUP, "v1", "ValidatingWebhookConfiguration", VALIDATING, namespaced=False)


def a_hook_with_rules(*rules: RuleWithOperations, **more: Any) -> CompiledWebhook:
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
    found = match_webhooks(
        [a_hook_with_rules(rule)], WriteAttributes("CREATE", kind, subresource), [kind]
    )
    assert bool(found) is is_meant


def test_another_version_of_the_kind_is_meant_too_unless_it_must_be_exact():
    rule = a_rule("things", api_versions=["v1"])
    loose, exact = a_hook_with_rules(rule), a_hook_with_rules(rule, match_policy="Exact")
    found = match_webhooks([loose, exact], WriteAttributes("CREATE", NEW, ""), [NEW, OLD])
    assert [(each.hook, each.kind) for each in found] == [(loose, OLD)]


def labelled(**labels: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def test_an_object_is_meant_by_its_labels_before_or_after():
    hook = a_hook_with_rules(object_selector=LabelSelector(match_labels={"a": "b"}))
    assert object_selector_matches(hook, None, labelled(a="b"))
    assert object_selector_matches(hook, labelled(a="b"), None)
    assert object_selector_matches(hook, labelled(a="b"), labelled(a="c"))
    assert not object_selector_matches(hook, labelled(), labelled(a="c"))
    absent = LabelSelectorRequirement("a", "DoesNotExist")
    without = a_hook_with_rules(object_selector=LabelSelector(match_expressions=[absent]))
    assert object_selector_matches(without, None, labelled(c="d"))


@pytest.mark.parametrize("meta", [None, "text", {"labels": 3}, {"labels": {"a": 1}}])
def test_labels_of_the_wrong_shape_are_none(meta: Any):
    hook = a_hook_with_rules(object_selector=LabelSelector(match_labels={"a": "b"}))
    assert not object_selector_matches(hook, None, {"metadata": meta})


def test_a_selector_that_cannot_be_read_selects_nothing():
    broken = LabelSelectorRequirement("a", "Like", ["b"])
    hook = a_hook_with_rules(object_selector=LabelSelector(match_expressions=[broken]))
    assert not object_selector_matches(hook, None, labelled(a="b"))


VERSIONS = ["v9", "v1", "v1beta1"]


def a_hook(*versions: str, mutating: bool = False) -> CompiledWebhook:
    type_ = MutatingWebhook if mutating else ValidatingWebhook
    listed = list(versions) or VERSIONS
    return CompiledWebhook(type_("a.b.c", admission_review_versions=listed), EVERYTHING, EVERYTHING)


def a_call(
    kind: ServedKind = PODS, name: str = "p", namespace: str | None = "n", **params: str
) -> ApiRequest:
    return ApiRequest(kind, "create", namespace, name, "", params, RequestUser("me", ("g",), "u"))


def asked(
    call: ApiRequest, new: dict[str, Any] | None = None, hook: CompiledWebhook | None = None
) -> Any:
    question = ReviewInput(call, "CREATE", request_options(call, "CREATE"))
    _, body = encode_review(hook or a_hook(), question, call.kind, None, new)
    return json.loads(body)


def test_a_webhook_is_spoken_to_in_the_first_version_that_both_know():
    assert asked(a_call(), {}, a_hook("v1beta1", "v1"))["apiVersion"] == "admission.k8s.io/v1beta1"


def test_a_new_namespace_is_its_own_namespace():
    request = asked(a_call(NAMESPACES, "", None), {"metadata": {"name": "team"}})["request"]
    assert (request["name"], request["namespace"]) == ("team", "team")


def an_answer(version: str = "v1", **response: Any) -> bytes:
    body = {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview"}
    return json.dumps({**body, "response": {"uid": "1", **response}}).encode()


def test_an_answer_to_the_question_is_read():
    assert decode_response(a_hook(), "1", an_answer(allowed=True)).allowed
    assert not decode_response(a_hook(), "1", an_answer()).allowed
    # v1beta1 does not require that the response repeats the UID.
    assert decode_response(a_hook("v1beta1"), "2", an_answer("v1beta1", allowed=True)).allowed


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "not an AdmissionReview"),
        (b"null", "not an AdmissionReview"),
        (b"\xff\xfe", "not an AdmissionReview"),
        (b"[" * 5000, "not an AdmissionReview"),
        (an_answer("v2", allowed=True), "got admission.k8s.io/v2, Kind=AdmissionReview"),
        (an_answer(uid="2"), 'expected response.uid="1", got "2"'),
        (an_answer(allowed="yes"), "not an AdmissionReview"),
        (an_answer(status="no"), "not an AdmissionReview"),
        (an_answer(patch="x"), "returned response.patch but not response.patchType"),
        (an_answer(patchType="JSONPatch"), "returned response.patchType but not response.patch"),
        (an_answer(patch="x", patchType="Merge"), 'invalid response.patchType of "Merge"'),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer: bytes, message: str):
    with pytest.raises(WebhookError) as error:
        decode_response(a_hook(mutating=True), "1", answer)
    assert message in str(error.value)


@pytest.mark.parametrize("patch", ["%", base64.b64encode(b"{").decode()])
def test_a_patch_that_cannot_be_read_is_refused(patch: str):
    answer = an_answer(allowed=True, patch=patch, patchType="JSONPatch")
    response = decode_response(a_hook(mutating=True), "1", answer)
    with pytest.raises(WebhookError, match="the patch is invalid"):
        patch_operations(response)


def test_a_denial_keeps_the_details_of_the_webhook():
    causes = [StatusCause("FieldValueInvalid", "too many", "spec.replicas")]
    given = Status(message="no", code=422, reason="Invalid", details=StatusDetails(causes=causes))
    status = denial_error(a_hook(), given).status
    assert status.message == 'admission webhook "a.b.c" denied the request: no'
    assert (status.code, status.reason, status.status) == (422, "Invalid", "Failure")
    assert status.details is not None
    assert status.details.causes == causes
