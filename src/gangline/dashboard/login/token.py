"""Mode ``token``: the viewer pastes a token of Kubernetes, which stays in the server's memory."""

from dataclasses import dataclass

from aiohttp import web

from gangline.api.meta.objects import Status
from gangline.dashboard.login.sessions import (
    NO_CSRF,
    Login,
    LoginRefused,
    Session,
    local_path,
    see_other,
)
from gangline.dashboard.viewers import Identity, read_user_name
from gangline.kube.errors import ApiError, Unauthorized

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
