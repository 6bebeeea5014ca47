"""Access and token reviews: queries about users and permissions, made by creating an object."""

from datetime import UTC, datetime

from gangline.local.apiserver.credentials import Authenticator
from gangline.local.apiserver.errors import bad_request
from gangline.local.apiserver.lifecycle import timestamp
from gangline.local.apiserver.negotiation import encode, mapping, read_body, text, texts
from gangline.local.apiserver.rbac import Authorizer, Deed
from gangline.local.apiserver.registry import Json, Kind
from gangline.local.apiserver.request import Call, User
from gangline.local.apiserver.rest import Answer

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"


def _review(group: str, kind: str, plural: str, *, namespaced: bool = False) -> Kind:
    return Kind(group, "v1", kind, plural, namespaced=namespaced, verbs=("create",))


def kinds() -> list[Kind]:
    """Return the kinds of reviews. Their objects are not stored."""
    return [
        _review(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
        _review(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
        _review(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews"),
        _review(
            AUTHORIZATION, "LocalSubjectAccessReview", "localsubjectaccessreviews", namespaced=True
        ),
        _review(AUTHENTICATION, "TokenReview", "tokenreviews"),
        _review(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews"),
    ]


class Reviews:
    """Handles reviews."""

    def __init__(self, authorizer: Authorizer, authenticator: Authenticator) -> None:
        self._authorizer = authorizer
        self._authenticator = authenticator

    async def answer(self, request: Call) -> Answer:
        """Return the review with its status.

        Raises:
            StatusError: the review is invalid.
        """
        review = mapping(read_body(request.body, request.content_type), "the body of the request")
        spec = mapping(review.get("spec"), "spec")
        match request.kind.kind:
            case "SelfSubjectAccessReview":
                status = self._access(request.user, spec)
            case "SubjectAccessReview" | "LocalSubjectAccessReview":
                status = self._access(_user(spec), spec)
            case "SelfSubjectRulesReview":
                status = self._rules(request.user, text(spec.get("namespace"), "spec.namespace"))
            case "TokenReview":
                status = self._token(text(spec.get("token"), "spec.token"))
            case _:
                status = {"userInfo": _info(request.user)}
        given = mapping(review.get("metadata"), "metadata")
        meta = {**given, "creationTimestamp": timestamp(datetime.now(UTC))}
        answer = {
            **review,
            "apiVersion": request.kind.api_version,
            "kind": request.kind.kind,
            "metadata": meta,
            "status": status,
        }
        return Answer(encode(answer), 201)

    def _access(self, user: User, spec: Json) -> Json:
        reason = self._authorizer.reason(user, _deed(spec))
        return {"allowed": bool(reason), **({"reason": reason} if reason else {})}

    def _rules(self, user: User, namespace: str) -> Json:
        if not namespace:
            raise bad_request("no namespace on request")
        everything: Json = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        pages: Json = {"nonResourceURLs": ["*"], "verbs": ["*"]}
        found = [rule for rule, _ in self._authorizer.rules(user, namespace)]
        if self._authorizer.reason(user, Deed("*", "*", "*")):
            found += [everything, pages]
        return {
            "resourceRules": [rule for rule in found if rule.get("resources")],
            "nonResourceRules": [rule for rule in found if rule.get("nonResourceURLs")],
            "incomplete": False,
        }

    def _token(self, token: str) -> Json:
        user = self._authenticator.by_token(token)
        if user is None:
            return {"authenticated": False, "error": "the token was not issued by this cluster"}
        return {"authenticated": True, "user": _info(user)}


def _user(spec: Json) -> User:
    groups = tuple(texts(spec.get("groups"), "spec.groups"))
    return User(text(spec.get("user"), "spec.user"), groups)


def _deed(spec: Json) -> Deed:
    page = mapping(spec.get("nonResourceAttributes"), "spec.nonResourceAttributes")
    asked = mapping(spec.get("resourceAttributes"), "spec.resourceAttributes")
    if bool(page) == bool(asked):
        raise bad_request("one of resourceAttributes and nonResourceAttributes must be given")
    found = {
        name: text(value, name) for name, value in (page or asked).items() if name in Deed._fields
    }
    return Deed(**{"verb": "", **found})


def _info(user: User) -> Json:
    return {"username": user.name, "groups": list(user.groups), "uid": user.uid}
