"""Access and token reviews: queries about users and permissions, made by creating an object."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from gangline.api.meta import field_causes
from gangline.local.apiserver.auth.authentication import API_AUDIENCES, Authenticator
from gangline.local.apiserver.auth.rbac import Authorizer
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.errors import bad_request, invalid
from gangline.local.apiserver.core.negotiation import (
    choose_format,
    encode_json,
    expect_object,
    expect_string,
    expect_strings,
)
from gangline.local.apiserver.core.prepare import format_timestamp
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser
from gangline.local.apiserver.verbs.rest import ApiResponse

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"
RESOURCE_ATTRIBUTES = ("verb", "group", "resource", "subresource", "namespace", "name")


class ReviewHandler:
    """Handles reviews."""

    def __init__(
        self,
        authorizer: Authorizer,
        authenticator: Authenticator,
        decode_body: Callable[[ApiRequest], Awaitable[Any]],
    ) -> None:
        self._decode_body = decode_body
        self._authorizer = authorizer
        self._authenticator = authenticator

    async def handle(self, request: ApiRequest) -> ApiResponse:
        """Return the review with its status. Raises StatusError: the review is invalid, or the
        client accepts only another form of it, such as a table.
        """
        choose_format(request.accept)
        review = expect_object(await self._decode_body(request), "the body of the request")
        spec = expect_object(review.get("spec"), "spec")
        match request.kind.kind:
            case "SelfSubjectAccessReview":
                status = self._access(request.user, spec)
            case "SubjectAccessReview":
                status = self._access(_user(spec), spec)
            case "LocalSubjectAccessReview":
                _check_local(spec, request.namespace or "")
                status = self._access(_user(spec), spec)
            case "SelfSubjectRulesReview":
                status = self._rules(
                    request.user, expect_string(spec.get("namespace"), "spec.namespace")
                )
            case "TokenReview":
                status = self._token(
                    expect_string(spec.get("token"), "spec.token"),
                    expect_strings(spec.get("audiences"), "spec.audiences"),
                )
            case _:
                status = {"userInfo": request.user.to_json()}
        given = expect_object(review.get("metadata"), "metadata")
        meta = {**given, "creationTimestamp": format_timestamp(datetime.now(UTC))}
        answer = {
            **review,
            "apiVersion": request.kind.api_version,
            "kind": request.kind.kind,
            "metadata": meta,
            "status": status,
        }
        return ApiResponse(encode_json(answer), 201)

    def _access(self, user: RequestUser, spec: Json) -> Json:
        reason = self._authorizer.allowed_reason(user, _access_attributes(spec))
        return {"allowed": bool(reason), **({"reason": reason} if reason else {})}

    def _rules(self, user: RequestUser, namespace: str) -> Json:
        if not namespace:
            raise bad_request("no namespace on request")
        rules = list(self._authorizer.rules_for(user, namespace))
        return {
            "resourceRules": [rule for rule in rules if rule.get("resources")],
            "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
            "incomplete": False,
        }

    def _token(self, token: str, audiences: list[str]) -> Json:
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        identity = self._authenticator.authenticate_token(token, audiences or API_AUDIENCES)
        if identity is None:
            why = "the token is invalid, has expired, or was issued for other audiences"
            return {"authenticated": False, "error": why}
        user = identity.user.to_json()
        return {"authenticated": True, "user": user, "audiences": list(identity.audiences)}


def _user(spec: Json) -> RequestUser:
    groups = tuple(expect_strings(spec.get("groups"), "spec.groups"))
    name = expect_string(spec.get("user"), "spec.user")
    if not name and not groups:
        raise bad_request("at least one of spec.user and spec.groups must be given")
    given = expect_object(spec.get("extra"), "spec.extra")
    extra = tuple((key, tuple(expect_strings(given[key], f"spec.extra[{key}]"))) for key in given)
    return RequestUser(name, groups, expect_string(spec.get("uid"), "spec.uid"), extra)


def _check_local(spec: Json, namespace: str) -> None:
    """Refuse a local review about anything outside of its namespace, which its user may not read.
    Raises StatusError: 400 or 422.
    """
    resource = expect_object(spec.get("resourceAttributes"), "spec.resourceAttributes")
    if spec.get("nonResourceAttributes") or not resource:
        raise bad_request("a LocalSubjectAccessReview must have spec.resourceAttributes only")
    given = resource.get("namespace")
    if given != namespace:
        field = "spec.resourceAttributes.namespace"
        cause = field_causes.invalid(field, given or "", "must match metadata.namespace")
        raise invalid(AUTHORIZATION, "LocalSubjectAccessReview", "", [cause])


def _access_attributes(spec: Json) -> AccessAttributes:
    path_attributes = expect_object(spec.get("nonResourceAttributes"), "spec.nonResourceAttributes")
    resource = expect_object(spec.get("resourceAttributes"), "spec.resourceAttributes")
    if bool(path_attributes) == bool(resource):
        raise bad_request("one of resourceAttributes and nonResourceAttributes must be given")
    names = ("verb", "path") if path_attributes else RESOURCE_ATTRIBUTES
    values = {
        name: expect_string(value, name)
        for name, value in (path_attributes or resource).items()
        if name in names
    }
    return AccessAttributes(**{"verb": "", **values})
