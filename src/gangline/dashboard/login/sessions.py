"""Sessions in the memory of the server, known by a random cookie, and three modes of logging in.

1. ``local``: one user of this machine. The server listens on loopback and prints an address with a
   random token; opening it sets a cookie. Requests with another Host header are refused, because a
   foreign name may lead to this address.
2. ``token``: the viewer pastes a token of Kubernetes, which stays in the server's memory.
3. ``header``: an authenticating proxy names the user, and the server impersonates it. Headers count
   only on connections from listed addresses, or with a client certificate that the server requires.
   Names that Kubernetes reserves are refused: a proxy must not hand out the rights of
   ``system:masters``.

The fourth, OpenID Connect, has a module of its own. All forms bring along the token of a session.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gangline.api.meta.objects import Status
from gangline.dashboard.rights import Identity, Viewers, put_last, read_user_name
from gangline.dashboard.settings import DashboardSettings
from gangline.kube.errors import ApiError, Unauthorized

LIFETIME_S = 12 * 3600.0
MAX_SESSIONS = 10_000
_ANY = "surrogatepass"
"""Headers may have bytes that are no text."""
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
        self.secure = secure
        self._clock = clock
        self._sessions: dict[str, tuple[float, Session]] = {}

    def find(self, request: web.Request) -> Session | None:
        """Return the session of a request; None if it has none, or it has expired."""
        value = _digest(request.cookies.get(self._cookie, ""))
        until, session = self._sessions.get(value, (0.0, None))
        if self._clock() >= until:
            self._sessions.pop(value, None)
            return None
        return session

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
            secure=self.secure,
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
    return hashlib.sha256(value.encode(errors=_ANY)).hexdigest()


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors=_ANY), expected.encode())


async def read_form(request: web.Request) -> Mapping[str, Any]:
    """Return the fields of a form; ``web.HTTPBadRequest`` if it cannot be read."""
    try:
        return await request.post()
    except (ValueError, LookupError) as error:
        raise web.HTTPBadRequest(text=f"the form cannot be read: {error}") from error


def see_other(address: str) -> web.Response:
    return web.Response(status=303, headers={"Location": address})


def local_path(text: str, default: str = "/") -> str:
    """Return a path of this server to continue at; the default if it leads elsewhere."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_local and not any(c in text for c in "\r\n\t\\") else default


TOKEN_PARAMETER = "token"


@dataclass(slots=True)
class LocalLogin(Login):
    name: str = ""
    """The user as whom the API server knows the server itself."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    async def intercept(self, request: web.Request) -> web.StreamResponse | None:
        """Refuse other hosts; turn the token of the printed address into a cookie."""
        host = request.host.rpartition(":")[0] if request.host[-1:] != "]" else request.host
        if (host or request.host) not in {"127.0.0.1", "localhost", "[::1]"}:
            raise web.HTTPMisdirectedRequest(
                text=f"{request.host!r} is not the name of this server: use 127.0.0.1"
            )
        given = request.query.get(TOKEN_PARAMETER, "")
        if not given or request.method != "GET" or not is_same(given, self.token):
            return None
        rest = request.rel_url.without_query_params(TOKEN_PARAMETER)
        response = see_other(local_path(str(rest)))
        self.sessions.start(response, Identity(), self.name)
        return response

    async def authenticate(self, request: web.Request) -> Session | None:
        """Return the session of the cookie, or of a program that sends the token."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_same(given, self.token):
            return Session(Identity(), self.name, NO_CSRF)
        return self.sessions.find(request)


MAX_TOKEN = 16_384
_NO_TOKEN = Status(status="Failure", reason="Unauthorized", message="no token", code=401)


@dataclass(slots=True)
class TokenLogin(Login):
    """Logging in with a token; programs send it as ``Authorization: Bearer``."""

    login_path: str = "/login"

    async def intercept(self, request: web.Request) -> web.StreamResponse | None:
        if request.method != "POST" or request.path != f"{self.base_path}{self.login_path}":
            return None
        form = await read_form(request)
        token = "".join(str(form.get("token", "")).split())
        try:
            name = await self._check(token)
        except Unauthorized as error:
            raise LoginRefused("login.refused") from error
        except ApiError as error:
            raise LoginRefused(str(error)) from error
        response = see_other(local_path(str(form.get("next", "")), f"{self.base_path}/"))
        self.sessions.start(response, Identity(token=token), name)
        return response

    async def authenticate(self, request: web.Request) -> Session | None:
        """Return the session of the cookie, or of a program that sends a token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return self.sessions.find(request)
        try:
            return Session(Identity(token=token), await self._check(token), NO_CSRF)
        except Unauthorized:
            return None

    async def _check(self, token: str) -> str:
        """Return the name of the user of a token; ``Unauthorized`` if it is not accepted."""
        if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
            raise Unauthorized(_NO_TOKEN)
        viewer = await self.viewers.viewer(Identity(token=token), "")
        if not viewer.name:
            viewer.name = await read_user_name(viewer.client) or "token"
        return viewer.name


RESERVED = "system:"


@dataclass(slots=True, kw_only=True)
class HeaderLogin(Login):
    settings: DashboardSettings
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Of it are the tokens of forms, because viewers have no session of ours."""

    async def authenticate(self, request: web.Request) -> Session | None:
        """Return the session of the user whom the proxy names."""
        # With an authority every connection has a client certificate that was verified.
        if not (self.settings.client_ca_file or self._is_trusted(request)):
            raise web.HTTPForbidden(
                text=f"requests from {request.remote} do not come through a proxy that is trusted"
            )
        users = request.headers.getall(self.settings.user_header, [])
        if len(users) != 1 or not users[0].strip():
            raise web.HTTPForbidden(text=f"the proxy must send {self.settings.user_header} once")
        lines = request.headers.getall(self.settings.group_header, [])
        groups = tuple(
            group for line in lines for part in line.split(",") if (group := part.strip())
        )
        user = users[0].strip()
        for name in (user, *groups):
            if name.startswith(RESERVED) or not name.isprintable():
                raise web.HTTPForbidden(
                    text=f"{name!r} is no name, or one that Kubernetes reserves"
                )
        csrf = hmac.new(self._secret, "\0".join((user, *groups)).encode(), hashlib.sha256)
        identity = Identity(user=user, groups=groups)
        return Session(identity, user, csrf.hexdigest(), can_end=False)

    def _is_trusted(self, request: web.Request) -> bool:
        # The address of the connection itself, never one that a header claims.
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if not peer:
            return False
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.settings.trusted_proxies)
