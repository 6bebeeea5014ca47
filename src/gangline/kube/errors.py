"""Errors of the client, as types to catch.

KubeError
├── ConfigError           no usable configuration; the message has a remedy
└── ApiError              a request failed; ``status`` is the server's Status
    ├── Unreachable       no response: no connection, connection lost, or timeout
    ├── Unauthorized      401   ├── Forbidden        403   ├── NotFound      404
    ├── Conflict          409   ├── AlreadyExists    409   ├── Gone          410
    ├── Invalid           422   ├── TooManyRequests  429   └── ServerTimeout 503, 504
    └── BadRequest        400
"""

import msgspec

from gangline.api.meta.objects import Status, StatusCause, StatusDetails


class KubeError(Exception):
    """Base of all errors that this package raises."""


class ConfigError(KubeError):
    """There is no usable configuration of a cluster; the message has a remedy."""


class ApiError(KubeError):
    """The API server refused a request, or did not respond."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message or status.reason or f"HTTP {status.code}")
        self.status = status

    @property
    def reason(self) -> str:
        """The machine-readable reason of the response, such as ``NotFound``."""
        return self.status.reason

    @property
    def code(self) -> int:
        """The HTTP status code; 0 without a response."""
        return self.status.code

    @property
    def causes(self) -> list[StatusCause]:
        """Every error that the server found in the request."""
        return self.status.details.causes if self.status.details else []

    @property
    def retry_after_s(self) -> float | None:
        """Delay that the server requested, in seconds; None if it requested none."""
        seconds = self.status.details.retry_after_seconds if self.status.details else 0
        return float(seconds) if seconds else None


class Unreachable(ApiError):
    """No response: no connection, connection lost, or timeout.

    Whether a write took effect is unknown.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Status(status="Failure", reason="Unreachable", message=message))


class BadRequest(ApiError):
    """The server could not parse the request."""


class Unauthorized(ApiError):
    """The server does not accept the credentials."""


class Forbidden(ApiError):
    """The user is known, but not allowed to do this."""


class NotFound(ApiError):
    """The object or the kind does not exist."""


class AlreadyExists(ApiError):
    """An object of this name exists."""


class Conflict(ApiError):
    """The object has changed since it was read, or another manager owns a field of it."""


class Gone(ApiError):
    """The server no longer has the requested revision: list again."""


class Invalid(ApiError):
    """The object violates the rules of its kind; ``causes`` has every error."""


class TooManyRequests(ApiError):
    """The server is busy, or an eviction would break a disruption budget."""


class ServerTimeout(ApiError):
    """The server, or a backend of it, did not respond in time."""


_BY_REASON: dict[str, type[ApiError]] = {
    "BadRequest": BadRequest,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Gone": Gone,
    "Expired": Gone,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "ServerTimeout": ServerTimeout,
    "Timeout": ServerTimeout,
    "ServiceUnavailable": ServerTimeout,
}

_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    503: ServerTimeout,
    504: ServerTimeout,
}

MAX_FOREIGN_MESSAGE = 500
"""Maximum length of a message that is not from a Status: the web page of a proxy can be long."""


def error_from_status(status: Status) -> ApiError:
    """Return the error for a Status: by its reason, else by its code."""
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code, ApiError)
    return kind(status)


def error_from_response(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the error for an HTTP response, whether or not its body is a Status."""
    status = _read_status(body) or Status(
        status="Failure", message=_foreign_message(code, body), code=code
    )
    seconds = int(retry_after) if retry_after and retry_after.isdecimal() else 0
    details = status.details or StatusDetails()
    if seconds and not details.retry_after_seconds:
        details = msgspec.structs.replace(details, retry_after_seconds=seconds)
    return error_from_status(
        msgspec.structs.replace(status, code=status.code or code, details=details)
    )


def _read_status(body: bytes) -> Status | None:
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        return None
    return status if status.kind == "Status" else None


def _foreign_message(code: int, body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())[:MAX_FOREIGN_MESSAGE]
    return (
        f"the server returned HTTP {code}: {text}" if text else f"the server returned HTTP {code}"
    )
