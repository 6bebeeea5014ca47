"""AdmissionReview: encoding the request to a webhook and decoding its response."""

import base64
import binascii
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from gangline.api.cluster.admission import (
    AdmissionRequest,
    AdmissionResponse,
    AdmissionReview,
    GroupVersionKind,
    GroupVersionResource,
    UserInfo,
)
from gangline.api.meta.objects import Status
from gangline.local.apiserver.admission.webhook_match import CompiledWebhook
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

ADMISSION = "admission.k8s.io"
KNOWN_VERSIONS = ("v1", "v1beta1")
OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
UNEXPLAINED = "without explanation"


class InvalidAdmissionResponse(Exception):
    """The response of a webhook cannot be used. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class ReviewInput:
    """The common input of all reviews of one write."""

    request: ApiRequest
    operation: str
    options: Json
    reviewed_kind: tuple[str, str, str] | None = None
    """Group, version and kind of the object if it is not of the resource's kind."""
    dry_run: bool = False


def request_options(request: ApiRequest, operation: str, more: Json | None = None) -> Json:
    """Return the options of a request for webhooks."""
    found: Json = {"kind": OPTIONS[operation], "apiVersion": "meta.k8s.io/v1"}
    if operation != "DELETE":
        named = ("fieldManager", "fieldValidation")
        found |= {name: request.params[name] for name in named if request.params.get(name)}
    if request.dry_run:
        found["dryRun"] = ["All"]
    return found | (more or {})


def review_version(hook: CompiledWebhook) -> str:
    """Return the AdmissionReview version to use: the webhook's first supported one."""
    return next(
        (v for v in hook.spec.admission_review_versions if v in KNOWN_VERSIONS), KNOWN_VERSIONS[0]
    )


def encode_review(
    hook: CompiledWebhook,
    review_input: ReviewInput,
    form: ServedKind,
    old: Json | None,
    new: Json | None,
) -> tuple[str, bytes]:
    """Return the UID and the body of a review request."""
    request, uid = review_input.request, str(uuid.uuid4())
    optional: Any = msgspec.UNSET
    admission_request = AdmissionRequest(
        uid=uid,
        kind=_kind(review_input, form),
        resource=GroupVersionResource(form.group, form.version, form.plural),
        sub_resource=request.subresource or optional,
        request_kind=_kind(review_input, request.kind),
        request_resource=GroupVersionResource(
            request.kind.group, request.kind.version, request.kind.plural
        ),
        request_sub_resource=request.subresource or optional,
        name=request_name(request, new) or optional,
        namespace=request_namespace(request, new) or optional,
        operation=review_input.operation,
        user_info=_user(request.user),
        object=new,
        old_object=old,
        dry_run=review_input.dry_run,
        options=review_input.options,
    )
    envelope = {
        "kind": "AdmissionReview",
        "apiVersion": f"{ADMISSION}/{review_version(hook)}",
        "request": admission_request,
    }
    return uid, encode_json(envelope)


def _kind(review_input: ReviewInput, form: ServedKind) -> GroupVersionKind:
    return GroupVersionKind(*(review_input.reviewed_kind or (form.group, form.version, form.kind)))


def _user(user: RequestUser) -> UserInfo:
    extra = {key: list(values) for key, values in user.extra}
    return UserInfo(username=user.name, uid=user.uid, groups=list(user.groups), extra=extra)


def decode_response(hook: CompiledWebhook, uid: str, body: bytes) -> AdmissionResponse:
    """Decode a webhook's response and check that it belongs to the request.

    Raises:
        InvalidAdmissionResponse: the response is invalid.
    """
    try:
        review = msgspec.json.decode(body, type=AdmissionReview)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidAdmissionResponse(f"the response is not an AdmissionReview: {error}") from None
    version = review_version(hook)
    response = review.response
    if version == "v1":
        if (review.api_version, review.kind) != (f"{ADMISSION}/v1", "AdmissionReview"):
            given = f"{review.api_version or '/'}, Kind={review.kind}"
            raise InvalidAdmissionResponse(
                f"expected webhook response of {ADMISSION}/v1, Kind=AdmissionReview, got {given}"
            )
        if response is not None and response.uid != uid:
            raise InvalidAdmissionResponse(f'expected response.uid="{uid}", got "{response.uid}"')
    if response is None:
        raise InvalidAdmissionResponse("webhook response was absent")
    _check_patch(hook, response, version)
    return response


def _check_patch(hook: CompiledWebhook, response: AdmissionResponse, version: str) -> None:
    patch, type_ = response.patch, response.patch_type
    if not hook.mutating:
        if version == "v1" and patch:
            raise InvalidAdmissionResponse("validating webhook may not return response.patch")
        if version == "v1" and type_:
            raise InvalidAdmissionResponse("validating webhook may not return response.patchType")
    elif patch and type_ is None and version == "v1":
        raise InvalidAdmissionResponse("webhook returned response.patch but not response.patchType")
    elif type_ and not patch and version == "v1":
        raise InvalidAdmissionResponse("webhook returned response.patchType but not response.patch")
    elif patch and type_ not in (None, "JSONPatch"):
        raise InvalidAdmissionResponse(f'webhook returned invalid response.patchType of "{type_}"')


def patch_operations(response: AdmissionResponse) -> Any:
    """Return the operations of a response's patch.

    Raises:
        InvalidAdmissionResponse: the patch is invalid.
    """
    if not response.patch:
        return []
    try:
        return msgspec.json.decode(base64.b64decode(response.patch, validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise InvalidAdmissionResponse(f"the patch is invalid: {error}") from None


def denial_error(hook: CompiledWebhook, status: Status | None) -> StatusError:
    """Return the error of a write that a webhook denied."""
    given = status or Status()
    text = given.message or given.reason
    denied = f'admission webhook "{hook.name}" denied the request'
    changed = msgspec.structs.replace(
        given,
        api_version="v1",
        kind="Status",
        status="Failure",
        code=given.code if 400 <= given.code < 600 else 400,
        message=f"{denied}: {text}" if text else f"{denied} {UNEXPLAINED}",
    )
    return StatusError(changed)


def is_namespace(kind: ServedKind) -> bool:
    return not kind.group and kind.kind == "Namespace"


def request_namespace(request: ApiRequest, obj: Json | None) -> str:
    """Return the namespace of a request; that of a Namespace object is its name."""
    return request_name(request, obj) if is_namespace(request.kind) else request.namespace or ""


def request_name(request: ApiRequest, obj: Json | None) -> str:
    """Return the name of the requested object; empty before the server generates one."""
    if request.name or obj is None:
        return request.name
    meta = obj.get("metadata")
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""
