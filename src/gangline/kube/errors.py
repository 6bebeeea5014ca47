"""What can go wrong between us and an API server, as types to catch.

KubeError
├── ConfigError           no usable configuration: says what to do about it
└── ApiError              a request failed; ``status`` says how, as the server put it
    ├── Unreachable       no answer: no connection, broken off, or too late
    ├── Unauthorized      401   ├── Forbidden        403   ├── NotFound      404
    ├── Conflict          409   ├── AlreadyExists    409   ├── Gone          410
    ├── Invalid           422   ├── TooManyRequests  429   └── ServerTimeout 503, 504
    └── BadRequest        400
"""

import msgspec

from gangline.api.meta import Status, StatusCause, StatusDetails


class KubeError(Exception):
    """Base of everything that this package raises on purpose."""


class ConfigError(KubeError):
    """There is no usable configuration of a cluster; the message says what would help."""


class ApiError(KubeError):
    """The API server refused a request, or did not answer it."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message or status.reason or f"HTTP {status.code}")
        self.status = status

    @property
    def reason(self) -> str:
        """The machine-readable word of the answer, such as ``NotFound``."""
        return self.status.reason

    @property
    def code(self) -> int:
        """The HTTP status code; 0 when there was no answer."""
        return self.status.code

    @property
    def causes(self) -> list[StatusCause]:
        """Every mistake that the server found in the request."""
        return self.status.details.causes if self.status.details else []

    @property
    def retry_after_s(self) -> float | None:
        """How many seconds the server asked us to wait, if it asked."""
        seconds = self.status.details.retry_after_seconds if self.status.details else 0
        return float(seconds) if seconds else None


class Unreachable(ApiError):
    """No answer: the server could not be reached, hung up, or took too long.

    Whether a write took effect is unknown.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Status(status="Failure", reason="Unreachable", message=message))


class BadRequest(ApiError):
    """The server could not make sense of the request."""


class Unauthorized(ApiError):
    """The server does not accept who we say we are."""


class Forbidden(ApiError):
    """We are known, and not allowed to do this."""


class NotFound(ApiError):
    """There is no such object, or no such kind."""


class AlreadyExists(ApiError):
    """An object of this name exists."""


class Conflict(ApiError):
    """The object has changed since it was read, or another manager owns a field of it."""


class Gone(ApiError):
    """The revision asked for is no longer held: list again."""


class Invalid(ApiError):
    """The object breaks rules of its kind; ``causes`` names each."""


class TooManyRequests(ApiError):
    """The server is busy, or an eviction would break a disruption budget."""


class ServerTimeout(ApiError):
    """The server, or something behind it, was not able to answer in time."""


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
"""Characters kept of an answer that is no Status: a proxy's web page can be long."""


def error_from_status(status: Status) -> ApiError:
    """The error that a Status stands for: by its reason, else by its code."""
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code, ApiError)
    return kind(status)


def error_from_answer(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error that an HTTP answer stands for, whether or not its body is a Status."""
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
        f"the server answered HTTP {code}: {text}" if text else f"the server answered HTTP {code}"
    )
