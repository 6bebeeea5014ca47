"""One call of an admission webhook: whether it matches, its AdmissionReview, and the POST.

Rules depend only on kind, operation and subresource, so their result is cached until a
configuration or a kind changes. Selectors depend on labels, which an earlier webhook may have
changed, so they are evaluated just before each call.

A webhook behind a service is called at the address of one of its ready pods, because a cluster IP
is reachable only inside the pod network. Its certificate must be valid for the service's name, as
in Kubernetes.
"""

import asyncio
import base64
import binascii
import os
import random
import ssl
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from gangline.api.cluster.admission import (
    GROUP,
    AdmissionRequest,
    AdmissionResponse,
    AdmissionReview,
    GroupVersionKind,
    GroupVersionResource,
    MutatingWebhook,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ServiceReference,
    UserInfo,
    ValidatingWebhookConfiguration,
    Webhook,
    WebhookClientConfig,
)
from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Status
from gangline.api.meta.selectors import NOTHING, Selector, SelectorError, selector_from_object
from gangline.display import error_text
from gangline.kube.http.transport import client_context
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import LazySession
from gangline.local.apiserver.kubelet_proxy.http_proxy import ready_addresses
from gangline.local.apiserver.machinery.encoding import decode_json
from gangline.local.apiserver.storage.store import ObjectStore

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
CONFIGURATION_TYPES = {
    MUTATING: MutatingWebhookConfiguration,
    VALIDATING: ValidatingWebhookConfiguration,
}
EXEMPT_RESOURCES = (
    MUTATING,
    VALIDATING,
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
"""Resources of the same group that no webhook sees: a webhook could forbid its own removal."""
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledWebhook:
    """A webhook with compiled selectors."""

    spec: Webhook
    namespaces: Selector
    objects: Selector

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def mutating(self) -> bool:
        """True if it may change objects."""
        return isinstance(self.spec, MutatingWebhook)

    @property
    def is_reinvoked(self) -> bool:
        """True if it is called again after later webhooks changed the object."""
        spec = self.spec
        return isinstance(spec, MutatingWebhook) and spec.reinvocation_policy == "IfNeeded"


class MatchedWebhook(NamedTuple):
    """A webhook whose rules match a write, and the version in which it receives the object."""

    hook: CompiledWebhook
    kind: ServedKind


class WriteAttributes(NamedTuple):
    """The attributes of a write that rules match."""

    operation: str
    kind: ServedKind
    subresource: str


def compile_webhooks(plural: str, body: bytes) -> list[CompiledWebhook]:
    """Return the webhooks of a stored configuration in order. Raises msgspec.ValidationError: the
    configuration is invalid; validation prevents storing one.
    """
    configuration = msgspec.json.decode(body, type=CONFIGURATION_TYPES[plural])
    return [compile_webhook(webhook) for webhook in configuration.webhooks]


def compile_webhook(webhook: Webhook) -> CompiledWebhook:
    return CompiledWebhook(
        webhook, _selector(webhook, "namespace_selector"), _selector(webhook, "object_selector")
    )


def _selector(webhook: Webhook, name: str) -> Selector:
    try:
        return selector_from_object(getattr(webhook, name))
    except SelectorError:
        return NOTHING


def match_webhooks(
    hooks: Iterable[CompiledWebhook], subject: WriteAttributes, forms: Sequence[ServedKind]
) -> list[MatchedWebhook]:
    """Return the webhooks whose rules match. ``forms``: the kind of the write, then its other
    versions.
    """
    if subject.kind.group == GROUP and subject.kind.plural in EXEMPT_RESOURCES:
        return []
    matches = (_match_webhook(hook, subject, forms) for hook in hooks)
    return [match for match in matches if match is not None]


def _match_webhook(
    hook: CompiledWebhook, subject: WriteAttributes, forms: Sequence[ServedKind]
) -> MatchedWebhook | None:
    exact = hook.spec.match_policy == "Exact"
    for form in forms[:1] if exact else forms:
        if any(rule_matches(rule, subject, form) for rule in hook.spec.rules):
            return MatchedWebhook(hook, form)
    return None


def rule_matches(rule: RuleWithOperations, subject: WriteAttributes, form: ServedKind) -> bool:
    """Return True if a rule matches a write in one version of its kind."""
    return (
        _contains(rule.operations, subject.operation)
        and _contains(rule.api_groups, form.group)
        and _contains(rule.api_versions, form.version)
        and any(
            _resource_matches(text, form.plural, subject.subresource) for text in rule.resources
        )
        and (rule.scope in ("", "*") or (rule.scope == "Namespaced") == form.namespaced)
    )


def _contains(listed: Sequence[str], value: str) -> bool:
    return "*" in listed or value in listed


def _resource_matches(text: str, plural: str, subresource: str) -> bool:
    resource, _, part = text.partition("/")
    return resource in ("*", plural) and part in ("*", subresource)


def object_selector_matches(hook: CompiledWebhook, old: Json | None, new: Json | None) -> bool:
    """Return True if the object selector matches the state before or after the write."""
    if not hook.objects.requirements:
        return not hook.objects.matches_nothing
    states = (state for state in (new, old) if state is not None)
    return any(hook.objects.matches(object_labels(state)) for state in states)


def object_labels(obj: Json) -> Labels:
    """Return the labels of an object; empty unless they are a map of strings."""
    meta = obj.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(value, str)}


ADMISSION = "admission.k8s.io"
KNOWN_VERSIONS = ("v1", "v1beta1")
OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
UNEXPLAINED = "without explanation"


class ConversionResponse(msgspec.Struct, rename="camel"):
    """The answer of a conversion webhook."""

    uid: str = ""
    result: Status = msgspec.field(default_factory=Status)
    converted_objects: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ConversionReview(msgspec.Struct, rename={"api_version": "apiVersion"}):
    api_version: str = ""
    kind: str = ""
    response: ConversionResponse | None = None


R = TypeVar("R", AdmissionReview, ConversionReview)


class WebhookError(Exception):
    """The webhook was not called, did not respond, or its response cannot be used. The message
    contains the reason.
    """


@dataclass(frozen=True, slots=True)
class ReviewInput:
    """The common input of all reviews of one write."""

    request: ApiRequest
    operation: str
    options: Json | None
    reviewed_kind: tuple[str, str, str] | None = None
    """Group, version and kind of the object if it is not of the resource's kind."""
    dry_run: bool = False


def request_options(request: ApiRequest, operation: str, more: Json | None = None) -> Json | None:
    """Return the options of a request for webhooks; None for a connection, which has none."""
    if operation not in OPTIONS:
        return None
    options: Json = {"kind": OPTIONS[operation], "apiVersion": "meta.k8s.io/v1"}
    if operation != "DELETE":
        named = ("fieldManager", "fieldValidation")
        options |= {name: request.params[name] for name in named if request.params.get(name)}
    if request.dry_run:
        options["dryRun"] = ["All"]
    return options | (more or {})


def review_version(hook: CompiledWebhook) -> str:
    """Return the AdmissionReview version to use: the webhook's first supported one."""
    return next(
        (v for v in hook.spec.admission_review_versions if v in KNOWN_VERSIONS), KNOWN_VERSIONS[0]
    )


def admission_request(
    review_input: ReviewInput, form: ServedKind, uid: str, states: tuple[Json | None, Json | None]
) -> AdmissionRequest:
    """Return a write as webhooks see it. ``states``: the object before and after the write."""
    request, (old, new) = review_input.request, states
    optional: Any = msgspec.UNSET
    return AdmissionRequest(
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
        user_info=UserInfo(**request.user.to_json()),
        object=new,
        old_object=old,
        dry_run=review_input.dry_run,
        options=review_input.options,
    )


def encode_review(
    hook: CompiledWebhook,
    review_input: ReviewInput,
    form: ServedKind,
    old: Json | None,
    new: Json | None,
) -> tuple[str, bytes]:
    """Return the UID and the body of a review request."""
    uid = str(uuid.uuid4())
    request = admission_request(review_input, form, uid, (old, new))
    envelope = {
        "kind": "AdmissionReview",
        "apiVersion": f"{ADMISSION}/{review_version(hook)}",
        "request": request,
    }
    return uid, encode_json(envelope)


def _kind(review_input: ReviewInput, form: ServedKind) -> GroupVersionKind:
    return GroupVersionKind(*(review_input.reviewed_kind or (form.group, form.version, form.kind)))


def decode_response(hook: CompiledWebhook, uid: str, body: bytes) -> AdmissionResponse:
    """Decode a webhook's response and check that it belongs to the request. Raises
    WebhookError: the response is invalid.
    """
    version = review_version(hook)
    expected = (f"{ADMISSION}/{version}", "AdmissionReview", uid) if version == "v1" else ()
    response = decode_review(body, AdmissionReview, expected).response
    if response is None:
        raise WebhookError("webhook response was absent")
    _check_patch(hook, response, version)
    return response


def decode_review(body: bytes, type_: type[R], expected: tuple[str, ...]) -> R:
    """Decode a review and check its version, its kind and the UID of its response, unless
    ``expected`` is empty. Raises WebhookError: it is no such review.
    """
    try:
        review = msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = "an AdmissionReview" if type_ is AdmissionReview else "a ConversionReview"
        raise WebhookError(f"the response is not {kind}: {error}") from None
    if not expected:
        return review
    version, kind, uid = expected
    if (review.api_version, review.kind) != (version, kind):
        given = f"{review.api_version or '/'}, Kind={review.kind}"
        raise WebhookError(f"expected webhook response of {version}, Kind={kind}, got {given}")
    if review.response is not None and review.response.uid != uid:
        raise WebhookError(f'expected response.uid="{uid}", got "{review.response.uid}"')
    return review


def _check_patch(hook: CompiledWebhook, response: AdmissionResponse, version: str) -> None:
    patch, type_ = response.patch, response.patch_type
    if not hook.mutating:
        if version == "v1" and patch:
            raise WebhookError("validating webhook may not return response.patch")
        if version == "v1" and type_:
            raise WebhookError("validating webhook may not return response.patchType")
    elif patch and type_ is None and version == "v1":
        raise WebhookError("webhook returned response.patch but not response.patchType")
    elif type_ and not patch and version == "v1":
        raise WebhookError("webhook returned response.patchType but not response.patch")
    elif patch and type_ not in (None, "JSONPatch"):
        raise WebhookError(f'webhook returned invalid response.patchType of "{type_}"')


def patch_operations(response: AdmissionResponse) -> Any:
    """Return the operations of a response's patch. Raises WebhookError: the patch is
    invalid.
    """
    if not response.patch:
        return []
    try:
        return decode_json(base64.b64decode(response.patch, validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise WebhookError(f"the patch is invalid: {error}") from None


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


MAX_RESPONSE_BYTES = 8 << 20
"""Maximum response in bytes; more than a base64 patch that replaces the largest object."""
MAX_CONNECTIONS = 256
"""Connections to all webhooks; deleting a large collection calls them for each object."""
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
MAX_SHOWN_CHARS = 300
"""Maximum number of characters of an unexpected response in an error message."""


class WebhookAddress(NamedTuple):
    """The address of a webhook."""

    display_url: str
    """The address as configured, for messages."""
    url: str
    """The address to connect to."""
    server_name: str
    """The host name to verify in the certificate; empty for that of the URL."""


class WebhookClient:
    """Calls webhooks."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._session = LazySession(MAX_CONNECTIONS)
        self.close = self._session.close

    async def call(self, hook: CompiledWebhook, body: bytes, timeout_s: float) -> bytes:
        """Post a review and return the response body. Raises WebhookError: there was no valid
        response.
        """
        query = f"?timeout={hook.spec.timeout_seconds}s"
        try:
            return await self.post(hook.spec.client_config, body, timeout_s, query)
        except WebhookError as error:
            raise WebhookError(f"failed to call webhook: {error}") from error

    async def post(
        self, client: WebhookClientConfig, body: bytes, timeout_s: float, query: str = ""
    ) -> bytes:
        """Post a body to an address and return that of the response. Raises WebhookError: there
        was no valid response.
        """
        shown = f"{client.url}{query}"
        try:
            if client.service is not None:
                shown = f"{service_url(client.service)}{query}"
                address = self._service_address(client.service, shown, query)
            else:
                address = WebhookAddress(shown, shown, "")
            async with asyncio.timeout(timeout_s):
                return await self._post(address, tls_context(client.ca_bundle), body)
        except TimeoutError:
            raise WebhookError(f'Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookError(f'Post "{shown}": {describe_error(error)}') from error

    async def _post(self, address: WebhookAddress, context: ssl.SSLContext, body: bytes) -> bytes:
        try:
            return await self._send(address, context, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # A keep-alive connection was closed meanwhile. A review may be sent twice.
            return await self._send(address, context, body)

    async def _send(self, address: WebhookAddress, context: ssl.SSLContext, body: bytes) -> bytes:
        headers, options = dict(HEADERS), dict[str, Any]()
        if address.server_name:
            headers["Host"] = urlsplit(address.display_url).netloc
            options["server_hostname"] = address.server_name
        async with self._session.get().post(
            address.url, data=body, headers=headers, ssl=context, allow_redirects=False, **options
        ) as answer:
            return await _read(answer)

    def _service_address(self, service: ServiceReference, shown: str, query: str) -> WebhookAddress:
        stored = self._store.committed("services.", f"{service.namespace}/{service.name}")
        if stored is None:
            raise ValueError(f'service "{service.name}" not found')
        spec = subobject(stored, "spec")
        name = f"{service.name}.{service.namespace}.svc"
        path = f"{service.path}{query}" if service.path else f"/{query}"
        if spec.get("type") == "ExternalName":
            return WebhookAddress(
                shown, f"https://{spec.get('externalName')}:{service.port}{path}", name
            )
        port = next((p for p in spec.get("ports") or () if p.get("port") == service.port), None)
        if port is None:
            raise ValueError(f'no service port {service.port} found for service "{service.name}"')
        named = (service.namespace, service.name, port.get("name") or "")
        ready = ready_addresses(self._store, *named)
        if not ready:
            raise ValueError(f'no endpoints available for service "{service.name}"')
        return WebhookAddress(shown, f"https://{random.choice(ready)}{path}", name)


def service_url(service: ServiceReference) -> str:
    path = service.path or "/"
    return f"https://{service.name}.{service.namespace}.svc:{service.port}{path}"


@lru_cache(maxsize=64)
def tls_context(bundle: str) -> ssl.SSLContext:
    """Return TLS settings that trust a CA bundle, or the system's authorities if it is empty.
    Raises ValueError: the bundle contains no certificates.
    """
    if not bundle:
        return client_context(None)
    try:
        pem = base64.b64decode(bundle, validate=True).decode("ascii")
        context = client_context(pem)
    except (ssl.SSLError, ValueError):
        raise ValueError(
            "unable to load root certificates: unable to parse bytes as PEM block"
        ) from None
    context.hostname_checks_common_name = False
    return context


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > MAX_RESPONSE_BYTES:
            answer.close()
            raise WebhookError(f"the response exceeds {MAX_RESPONSE_BYTES} bytes")
    if answer.status == 200:
        return bytes(content)
    if answer.status == 404:
        raise WebhookError("the server could not find the requested resource")
    if answer.status >= 500:
        text = bytes(content).decode(errors="replace").strip()[:MAX_SHOWN_CHARS] or "unknown"
        raise WebhookError(
            f'an error on the server ("{text}") has prevented the request from succeeding'
        )
    raise WebhookError(
        f"the server responded with the status code {answer.status} "
        "but did not return more information"
    )


def describe_error(error: Exception) -> str:
    """Return why a call failed, with the wording of Kubernetes where there is one."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner = error.certificate_error
        text = getattr(inner, "verify_message", "") or str(inner)
        return f"tls: failed to verify certificate: x509: {text}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"tls: {error.os_error or error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        text = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
        return f"dial tcp {error.host}:{error.port}: connect: {text}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return error_text(error)
