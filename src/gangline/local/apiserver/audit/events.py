"""Audit events in the format of Kubernetes: ``audit.k8s.io/v1`` at the level Metadata.

An event has no bodies, neither of the request nor of the response, so that the log contains no
Secret. The options of the request are in ``requestURI``, among them the commands of exec.
"""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gangline.api.meta.objects import Status
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

RESPONSE_STARTED, RESPONSE_COMPLETE = "ResponseStarted", "ResponseComplete"
DECISION, REASON = "authorization.k8s.io/decision", "authorization.k8s.io/reason"


@dataclass(slots=True)
class RequestTrace:
    """What is known about a request, completed while it is handled."""

    method: str
    uri: str
    source_address: str
    user_agent: str
    received: datetime = field(default_factory=lambda: datetime.now(UTC))
    audit_id: str = ""
    """The same in all events of a request; assigned with the first."""
    user: RequestUser | None = None
    """The authenticated user; None before authentication, and if it fails."""
    impersonated: RequestUser | None = None
    request: ApiRequest | None = None
    """The request for objects; None for a non-resource path."""
    reason: str = ""
    """Why the request is authorized; empty if it is not."""
    code: int = 0
    """The HTTP status; 0 if the client disconnected before it."""
    failure: Status | None = None


def encode_event(trace: RequestTrace, stage: str, now: datetime) -> bytes:
    """Return the event of a stage as one line."""
    request = trace.request
    trace.audit_id = trace.audit_id or str(uuid.uuid4())
    event: Json = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": trace.audit_id,
        "stage": stage,
        "requestURI": trace.uri,
        "verb": request.verb if request is not None else trace.method.lower(),
        "user": _user(trace.user) if trace.user is not None else {},
    }
    if trace.impersonated is not None:
        event["impersonatedUser"] = _user(trace.impersonated)
    event["sourceIPs"] = [trace.source_address] if trace.source_address else []
    if trace.user_agent:
        event["userAgent"] = trace.user_agent
    if request is not None:
        event["objectRef"] = _object_reference(request)
    if stage == RESPONSE_COMPLETE:
        event["responseStatus"] = _response_status(trace)
    event["requestReceivedTimestamp"] = _timestamp(trace.received)
    event["stageTimestamp"] = _timestamp(now)
    if trace.reason:
        event["annotations"] = {DECISION: "allow", REASON: trace.reason}
    elif trace.code == 403:
        event["annotations"] = {DECISION: "forbid", REASON: ""}
    if request is not None and request.audit_annotations:
        event["annotations"] = event.get("annotations", {}) | request.audit_annotations
    try:
        return encode_json(event) + b"\n"
    except UnicodeEncodeError:  # headers may contain bytes that are not UTF-8
        return encode_json(_escaped(event)) + b"\n"


def _escaped(value: Any) -> Any:
    """Return a value whose text has ``\\udc80`` in place of a byte that is not UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _user(user: RequestUser) -> Json:
    found: Json = {"username": user.name}
    if user.uid:
        found["uid"] = user.uid
    if user.groups:
        found["groups"] = list(user.groups)
    if user.extra:
        found["extra"] = {key: list(values) for key, values in user.extra}
    return found


def _object_reference(request: ApiRequest) -> Json:
    kind = request.kind
    named = {
        "resource": kind.plural,
        "namespace": request.namespace,
        "name": request.name,
        "apiGroup": kind.group,
        "apiVersion": kind.version,
        "subresource": request.subresource,
    }
    return {name: value for name, value in named.items() if value}


def _response_status(trace: RequestTrace) -> Json:
    found: Json = {"metadata": {}}
    if trace.failure is not None:
        failure = trace.failure
        found |= {"status": "Failure", "message": failure.message, "reason": failure.reason}
    return found | ({"code": trace.code} if trace.code else {})


def _timestamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
