"""Mode ``header``: an authenticating proxy names the user, and the server impersonates it.

Headers count only on connections from listed addresses, or with a client certificate that the
server requires. Names that Kubernetes reserves are refused: a proxy must not hand out the rights of
``system:masters``.
"""

import ipaddress
import secrets
from dataclasses import dataclass, field

from aiohttp import web

from gangline.dashboard.login.sessions import Login, Session, derived_csrf
from gangline.dashboard.settings import HeaderSettings
from gangline.dashboard.viewers import Identity

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
