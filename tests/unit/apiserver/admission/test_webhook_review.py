"""AdmissionReview: requests to webhooks, and which responses are valid."""

import base64
import json
from typing import Any

import pytest

from gangline.api.cluster.admission import MutatingWebhook, ValidatingWebhook
from gangline.api.meta.objects import Status, StatusCause, StatusDetails
from gangline.api.meta.selectors import EVERYTHING
from gangline.local.apiserver.admission.webhook_match import CompiledWebhook
from gangline.local.apiserver.admission.webhook_review import (
    InvalidAdmissionResponse,
    ReviewInput,
    decode_response,
    denial_error,
    encode_review,
    patch_operations,
    request_options,
)
from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

PODS = ServedKind("", "v1", "Pod", "pods")
NAMESPACES = ServedKind("", "v1", "Namespace", "namespaces", namespaced=False)
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


def test_review_request_contains_user_operation_and_object():
    found = asked(a_call(fieldManager="m", dryRun="All"), {"metadata": {"name": "p"}})
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    request = found["request"]
    assert request["userInfo"] == {"username": "me", "uid": "u", "groups": ["g"]}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["options"] == {
        "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "m",
        "dryRun": ["All"],
    }  # fmt: skip
    assert request["oldObject"] is None
    assert "subResource" not in request


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
    with pytest.raises(InvalidAdmissionResponse) as error:
        decode_response(a_hook(mutating=True), "1", answer)
    assert message in str(error.value)


@pytest.mark.parametrize("patch", ["%", base64.b64encode(b"{").decode()])
def test_a_patch_that_cannot_be_read_is_refused(patch: str):
    answer = an_answer(allowed=True, patch=patch, patchType="JSONPatch")
    response = decode_response(a_hook(mutating=True), "1", answer)
    with pytest.raises(InvalidAdmissionResponse, match="the patch is invalid"):
        patch_operations(response)


def test_a_denial_keeps_the_details_of_the_webhook():
    causes = [StatusCause("FieldValueInvalid", "too many", "spec.replicas")]
    given = Status(message="no", code=422, reason="Invalid", details=StatusDetails(causes=causes))
    status = denial_error(a_hook(), given).status
    assert status.message == 'admission webhook "a.b.c" denied the request: no'
    assert (status.code, status.reason, status.status) == (422, "Invalid", "Failure")
    assert status.details is not None
    assert status.details.causes == causes
