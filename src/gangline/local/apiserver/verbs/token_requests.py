"""The token subresource of service accounts: TokenRequest."""

from datetime import UTC, datetime

from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.admission.node_restriction import restrict_token_request
from gangline.local.apiserver.admission.webhooks import CREATE
from gangline.local.apiserver.auth.service_account_tokens import (
    API_AUDIENCES,
    BoundObject,
    ObjectClaim,
    ServiceAccountTokens,
)
from gangline.local.apiserver.core.errors import bad_request, conflict, invalid, not_found
from gangline.local.apiserver.core.metadata import format_timestamp
from gangline.local.apiserver.core.negotiation import (
    encode_json,
    expect_object,
    expect_string,
    expect_strings,
    read_json,
)
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs.read import read_object
from gangline.local.apiserver.verbs.rest import ApiResponse, ResourceHandler
from gangline.local.apiserver.verbs.write import WritePath

TOKEN = ("authentication.k8s.io", "v1", "TokenRequest")
GROUP = "authentication.k8s.io"
DEFAULT_TOKEN_S = 3600
MIN_TOKEN_S = 600
MAX_TOKEN_S = 1 << 32
BOUND_PLURALS = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


class TokenRequestHandler:
    """Handles requests for tokens."""

    def __init__(
        self,
        store: ObjectStore,
        writer: WritePath,
        rest: ResourceHandler,
        tokens: ServiceAccountTokens,
    ) -> None:
        self._store = store
        self._writer = writer
        self._rest = rest
        self._tokens = tokens

    async def handle(self, request: ApiRequest) -> ApiResponse:
        """Issue a token for a service account.

        Raises:
            StatusError: there is no such account or bound object, or the request is invalid.
        """
        given = await self._rest.decode_body(request) if request.body else {}
        token_request = expect_object(given, "the body of the request")
        account = read_json(read_object(self._store, request).body)
        if review := self._writer.review(request, CREATE, TOKEN):
            token_request = await review.admit(None, token_request)
        spec = expect_object(token_request.get("spec"), "spec")
        seconds = _lifetime(request, spec.get("expirationSeconds"))
        audiences = expect_strings(spec.get("audiences"), "spec.audiences") or list(API_AUDIENCES)
        reference = expect_object(spec.get("boundObjectRef"), "spec.boundObjectRef")
        bound = self._bound_object(request, reference) if reference else None
        restrict_token_request(request, audiences, reference, bound)
        claim = ObjectClaim(request.name, account["metadata"]["uid"])
        token, ends = self._tokens.issue(request.namespace or "", claim, audiences, seconds, bound)
        if bound is not None:
            reference = {"boundObjectRef": reference | {"uid": bound.claim.uid}}
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": request.name, "namespace": request.namespace},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, **reference},
            "status": {
                "token": token,
                "expirationTimestamp": format_timestamp(datetime.fromtimestamp(ends, UTC)),
            },
        }
        return ApiResponse(encode_json(answer), 201)

    def _bound_object(self, request: ApiRequest, reference: Json) -> BoundObject:
        kind, version, name, uid = (
            expect_string(reference.get(field), f"spec.boundObjectRef.{field}")
            for field in ("kind", "apiVersion", "name", "uid")
        )
        if kind not in BOUND_PLURALS or version != "v1":
            raise bad_request(
                f"cannot bind token to object of type {version}, Kind={kind}: "
                "only v1 Pod, Secret and Node can be bound"
            )
        plural = BOUND_PLURALS[kind]
        key = name if kind == "Node" else f"{request.namespace}/{name}"
        record = self._store.cache(f"{plural}.").records.get(key)
        if record is None:
            raise not_found(plural, "", name)
        obj = read_json(record.body)
        found = obj["metadata"]["uid"]
        if uid and uid != found:
            why = f"the UID in the bound object reference ({uid}) does not match the UID in record"
            raise conflict(plural, "", name, f"{why}. The object might have been deleted and "
                           f"then recreated (the UID is now {found})")  # fmt: skip
        node = None
        if kind == "Pod":
            account = obj["spec"].get("serviceAccountName") or "default"
            if account != request.name:
                raise bad_request(
                    f'cannot bind token for serviceaccount "{request.name}" to pod running with '
                    f'different serviceaccount name "{account}".'
                )
            node = self._node_claim(obj["spec"].get("nodeName"))
        return BoundObject(kind, ObjectClaim(name, found), node, obj)

    def _node_claim(self, name: str | None) -> ObjectClaim | None:
        record = self._store.cache("nodes.").records.get(name or "")
        uid = read_json(record.body)["metadata"]["uid"] if record else ""
        return ObjectClaim(name, uid) if name else None


def _lifetime(request: ApiRequest, given: object) -> int:
    if given is None:
        return DEFAULT_TOKEN_S
    path = "spec.expirationSeconds"
    if not isinstance(given, int) or isinstance(given, bool):
        raise bad_request(f"{path} must be a number of seconds")
    if MIN_TOKEN_S <= given <= MAX_TOKEN_S:
        return given
    limit = "less than 10 minutes" if given < MIN_TOKEN_S else "larger than 2^32 seconds"
    message = f"Invalid value: {given}: may not specify a duration {limit}"
    cause = StatusCause("FieldValueInvalid", message, path)
    raise invalid(GROUP, "TokenRequest", request.name, [cause])
