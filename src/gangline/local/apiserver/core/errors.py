"""Errors of the API server: every error that a client sees is a ``StatusError``.

Each function returns the Status object that Kubernetes returns in the same case. Clients act on
code and reason, so they behave as with Kubernetes.
"""

from collections.abc import Iterable
from http import HTTPStatus

from gangline.api.meta.objects import ListMeta, Status, StatusCause, StatusDetails
from gangline.local import limits


class StatusError(Exception):
    """The request is answered with a Status object in place of its result."""

    def __init__(self, status: Status, headers: dict[str, str] | None = None) -> None:
        super().__init__(status.message)
        self.status = status
        self.headers = headers or {}


def status_error(
    code: int,
    reason: str,
    message: str,
    details: StatusDetails | None = None,
    *,
    continue_token: str = "",
) -> StatusError:
    """Return any error. The functions below cover the usual ones."""
    headers = {}
    if details is not None and details.retry_after_seconds:
        headers["Retry-After"] = str(details.retry_after_seconds)
    return StatusError(
        Status(
            metadata=ListMeta(continue_=continue_token),
            status="Failure",
            message=message,
            reason=reason,
            details=details,
            code=code,
        ),
        headers,
    )


def qualified_resource(plural: str, group: str) -> str:
    """Return a resource name as in messages: ``jobs.batch``, or ``pods`` for the core group."""
    return f"{plural}.{group}" if group else plural


def _object_error(
    code: int,
    reason: str,
    plural: str,
    group: str,
    name: str,
    text: str,
    causes: Iterable[StatusCause] = (),
) -> StatusError:
    message = f'{qualified_resource(plural, group)} "{name}" {text}'
    details = StatusDetails(name=name, group=group, kind=plural, causes=list(causes))
    return status_error(code, reason, message, details)


def not_found(plural: str, group: str, name: str) -> StatusError:
    """404 for an object that does not exist."""
    return _object_error(404, "NotFound", plural, group, name, "not found")


def unknown_path() -> StatusError:
    """404 for a path that is not served."""
    return status_error(
        404,
        "NotFound",
        "the server could not find the requested resource",
        StatusDetails(causes=[StatusCause("UnexpectedServerResponse", "404 page not found")]),
    )


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """409 for a creation with an existing name."""
    return _object_error(409, "AlreadyExists", plural, group, name, "already exists")


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """409 for a write based on an older state, or on another object with the same name."""
    return status_error(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified_resource(plural, group)} "{name}": {why}',
        StatusDetails(name=name, group=group, kind=plural),
    )


def bad_request(message: str) -> StatusError:
    """400 for a request that cannot be parsed."""
    return status_error(400, "BadRequest", message)


def invalid(group: str, kind: str, name: str, causes: Iterable[StatusCause]) -> StatusError:
    """422 with all field errors of an object, up to a maximum number."""
    listed = list(causes)
    if len(listed) > limits.MAX_CAUSES:
        listed = listed[: limits.MAX_CAUSES]
        message = f"only the first {limits.MAX_CAUSES} errors are listed"
        listed.append(StatusCause("FieldValueTooMany", message, ""))
    texts = [f"{cause.field}: {cause.message}" for cause in listed]
    summary = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return status_error(
        422,
        "Invalid",
        f'{qualified_resource(kind, group)} "{name}" is invalid: {summary}',
        StatusDetails(name=name, group=group, kind=kind, causes=listed),
    )


def forbidden(message: str, plural: str = "", group: str = "", name: str = "") -> StatusError:
    """403 for a request that its user may not send."""
    details = StatusDetails(name=name, group=group, kind=plural)
    return status_error(403, "Forbidden", message, details)


def forbidden_object(
    plural: str, group: str, name: str, why: str, causes: Iterable[StatusCause] = ()
) -> StatusError:
    """403 for an object that a rule of the cluster forbids."""
    return _object_error(403, "Forbidden", plural, group, name, f"is forbidden: {why}", causes)


def unauthorized() -> StatusError:
    """401 for a request without valid credentials."""
    return status_error(401, "Unauthorized", "Unauthorized")


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """410 for a revision that is no longer available."""
    return status_error(410, "Expired", message, continue_token=continue_token)


def method_not_allowed(method: str) -> StatusError:
    """405 for a verb that the resource does not support."""
    return status_error(
        405,
        "MethodNotAllowed",
        f"the server does not allow this method ({method}) on the requested resource",
    )


def not_acceptable(offers: Iterable[str]) -> StatusError:
    """406 if the client accepts none of the offered media types."""
    listed = ", ".join(offers)
    return status_error(
        406, "NotAcceptable", f"only the following media types are accepted: {listed}"
    )


def unsupported_media(given: str, accepted: Iterable[str]) -> StatusError:
    listed = ", ".join(accepted)
    return status_error(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({given or 'none named'}) - "
        f"accepted media types include: {listed}",
    )


def too_large(limit: int) -> StatusError:
    """413 for a body above the limit in bytes."""
    return status_error(
        413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit} bytes"
    )


def too_many(message: str, causes: list[StatusCause], retry_after: int = 0) -> StatusError:
    """429 for a valid request that is not permitted now, such as an eviction against a budget."""
    return status_error(
        429,
        "TooManyRequests",
        message,
        StatusDetails(causes=causes, retry_after_seconds=retry_after),
    )


def timed_out(message: str, causes: list[StatusCause] | None = None) -> StatusError:
    """504 for a request whose result was not ready in time."""
    return status_error(
        504, "Timeout", message, StatusDetails(causes=causes or [], retry_after_seconds=1)
    )


def unavailable(message: str) -> StatusError:
    """503 if the response depends on something unavailable (a kubelet, a stopping server)."""
    return status_error(503, "ServiceUnavailable", message)


def internal(message: str) -> StatusError:
    """500 for an error that the client did not cause."""
    return status_error(500, "InternalError", f"Internal error occurred: {message}")


def reason_for_code(code: int) -> str:
    return HTTPStatus(code).phrase.replace(" ", "")
