"""Three modes of logging in. The fourth, OpenID Connect, has a module of its own.

1. ``local``: one user of this machine. The server listens on loopback and prints an address with a
   random token; opening it sets a cookie. Requests with another Host header are refused, because a
   foreign name may lead to this address.
2. ``token``: the viewer pastes a token of Kubernetes, which stays in the server's memory.
3. ``header``: an authenticating proxy names the user, and the server impersonates it. Headers count
   only on connections from listed addresses, or with a client certificate that the server requires.
   Names that Kubernetes reserves are refused: a proxy must not hand out the rights of
   ``system:masters``.
"""

import ipaddress
import secrets
from dataclasses import dataclass, field

from aiohttp import web

from gangline.api.meta.objects import Status
from gangline.dashboard.login.sessions import (
    NO_CSRF,
    Login,
    LoginRefused,
    Session,
    derived_csrf,
    is_same,
    local_path,
    see_other,
)
from gangline.dashboard.rights import Identity, read_user_name
from gangline.dashboard.settings import HeaderSettings
from gangline.kube.errors import ApiError, Unauthorized

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
        form = await request.post()
        token = "".join(str(form.get("token", "")).split())
        problem, name = "", ""
        try:
            name = await self._check(token)
        except Unauthorized:
            problem = "login.refused"
        except ApiError as error:
            problem = str(error)
        if problem:
            raise LoginRefused(problem)
        next_path = local_path(str(form.get("next", "")), f"{self.base_path}/")
        response = see_other(next_path)
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
        """Return the name of the user of a token.

        Raises:
            Unauthorized: the API server does not accept the token.
        """
        if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
            raise Unauthorized(_NO_TOKEN)
        viewer = await self.viewers.viewer(Identity(token=token), "")
        if not viewer.name:
            viewer.name = await read_user_name(viewer.client) or "token"
        return viewer.name


RESERVED = "system:"


@dataclass(slots=True, kw_only=True)
class HeaderLogin(Login):
    settings: HeaderSettings
    has_client_certificates: bool = False
    """True if every connection has a client certificate that was verified."""
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    async def authenticate(self, request: web.Request) -> Session | None:
        """Return the session of the user whom the proxy names.

        Raises:
            web.HTTPForbidden: the headers are not to be believed, are ambiguous, or name
                what Kubernetes reserves.
        """
        if not (self.has_client_certificates or self._is_trusted(request)):
            raise web.HTTPForbidden(
                text=f"requests from {request.remote} do not come through a proxy that is trusted"
            )
        users = request.headers.getall(self.settings.user, [])
        if len(users) != 1 or not users[0].strip():
            raise web.HTTPForbidden(text=f"the proxy must send {self.settings.user} once")
        lines = request.headers.getall(self.settings.groups, [])
        groups = tuple(
            group for line in lines for part in line.split(",") if (group := part.strip())
        )
        user = users[0].strip()
        if reserved := [name for name in (user, *groups) if name.startswith(RESERVED)]:
            raise web.HTTPForbidden(text=f"{reserved[0]!r} is a name that Kubernetes reserves")
        csrf = derived_csrf(self._secret, "\0".join((user, *groups)))
        return Session(Identity(user=user, groups=groups), user, csrf, can_end=False)

    def _is_trusted(self, request: web.Request) -> bool:
        # The address of the connection itself, never one that a header claims.
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if not peer:
            return False
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.settings.trusted_proxies)
