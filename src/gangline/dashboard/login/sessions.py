"""Sessions in the memory of the server, known by a random cookie; tokens that forms bring along."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from gangline.dashboard.rights import Identity, Viewers, put_last

LIFETIME_S = 12 * 3600.0
MAX_SESSIONS = 10_000
NO_CSRF = ""
"""The token of programs: they send their credentials themselves, which no other site can do."""


class LoginRefused(Exception):
    """Logging in has failed; the argument is a text of the catalogue, or a message."""


@dataclass(frozen=True, slots=True)
class Session:
    """A viewer who has logged in."""

    identity: Identity
    name: str
    csrf: str = field(repr=False)
    """Forms must bring it along, so that no other site can send them."""
    can_end: bool = True
    """False if logging in is done elsewhere."""


@dataclass(slots=True)
class Login:
    """How viewers log in; each mode has a subclass."""

    sessions: "Sessions"
    viewers: Viewers
    base_path: str = ""
    login_path: str = ""
    """Address of the page to log in; empty if there is none."""

    async def intercept(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request that is part of logging in; None for all others."""
        return None

    async def authenticate(self, request: web.Request) -> Session | None:
        """Return the session of a request; None if the viewer has to log in.

        Raises:
            web.HTTPForbidden: the viewer cannot log in this way.
        """
        return self.sessions.find(request)


class Sessions:
    """All sessions, by the value of their cookie."""

    def __init__(
        self,
        cookie: str,
        *,
        path: str = "/",
        secure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cookie = cookie
        self._path = path or "/"
        self._secure = secure
        self._clock = clock
        self._sessions: dict[str, tuple[float, Session]] = {}

    def find(self, request: web.Request) -> Session | None:
        """Return the session of a request; None if it has none, or it has expired."""
        value = request.cookies.get(self._cookie, "")
        entry = self._sessions.get(_digest(value))
        if entry is None:
            return None
        if self._clock() >= entry[0]:
            del self._sessions[_digest(value)]
            return None
        return entry[1]

    def start(
        self,
        response: web.StreamResponse,
        identity: Identity,
        name: str,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        value = secrets.token_urlsafe(32)
        session = Session(identity, name, secrets.token_urlsafe(24))
        put_last(
            self._sessions, _digest(value), (self._clock() + lifetime_s, session), MAX_SESSIONS
        )
        response.set_cookie(
            self._cookie,
            value,
            max_age=int(lifetime_s),
            path=self._path,
            httponly=True,
            secure=self._secure,
            samesite="Strict",
        )

    def end(self, request: web.Request, response: web.StreamResponse) -> None:
        self._sessions.pop(_digest(request.cookies.get(self._cookie, "")), None)
        response.del_cookie(self._cookie, path=self._path)

    def end_all_of(self, identity: Identity) -> None:
        """End the sessions with credentials that are no longer valid."""
        for value, (_, session) in list(self._sessions.items()):
            if session.identity == identity:
                del self._sessions[value]


def _digest(value: str) -> str:
    """Return the key of a session, so that the time of a search tells nothing about cookies."""
    return hashlib.sha256(value.encode()).hexdigest()


def derived_csrf(secret: bytes, name: str) -> str:
    """Return the token of forms for a viewer without a session of ours."""
    return hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def see_other(address: str) -> web.Response:
    return web.Response(status=303, headers={"Location": address})


def local_path(text: str, default: str = "/") -> str:
    """Return a path of this server to continue at; the default if it leads elsewhere."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_local and not any(c in text for c in "\r\n\t\\") else default
