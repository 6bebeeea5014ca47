"""Mode ``local``: one user of this machine.

The server listens on loopback and prints an address with a random token; opening it sets a cookie.
Requests with another Host header are refused, because a foreign name may lead to this address.
"""

import secrets
from dataclasses import dataclass, field

from aiohttp import web

from gangline.dashboard.login.sessions import (
    NO_CSRF,
    Login,
    Session,
    is_same,
    local_path,
    see_other,
)
from gangline.dashboard.viewers import Identity

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
