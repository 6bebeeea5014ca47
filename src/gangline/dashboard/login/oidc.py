"""Mode ``oidc``: OpenID Connect, by the authorization code flow with PKCE.

The provider's keys check the ID token, with issuer, audience, expiry and nonce. Then either the
token itself is sent to the API server, or the server impersonates the name and the groups in it.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
import jwt
from aiohttp import web

from gangline.dashboard.login.sessions import (
    RESERVED,
    Login,
    LoginRefused,
    is_same,
    local_path,
    see_other,
)
from gangline.dashboard.rights import Identity, put_last
from gangline.dashboard.settings import DashboardSettings
from gangline.sdk.advice import public_authorities

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA")
"""Signatures with a public key only: with others the client secret could sign tokens."""
TIMEOUT = aiohttp.ClientTimeout(total=10)
PENDING_S = 600.0
MAX_PENDING = 10_000
METADATA_S = 3600.0
_COOKIE = "gangline_login"


@dataclass(frozen=True, slots=True)
class _Pending:
    verifier: str
    nonce: str
    next_path: str
    until: float


@dataclass(slots=True, kw_only=True)
class OidcLogin(Login):
    settings: DashboardSettings
    login_path: str = "/login"
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _metadata: Mapping[str, Any] = field(default_factory=dict)
    _keys: Any = None
    _read_at: float = -METADATA_S

    async def intercept(self, request: web.Request) -> web.StreamResponse | None:
        """Send the viewer to the provider, and take the code that comes back."""
        if request.method == "GET" and request.path == f"{self.base_path}{self.login_path}":
            given = request.query.get("next", "")
            return await self._begin(local_path(given, f"{self.base_path}/"))
        if request.method == "GET" and request.path == f"{self.base_path}/oidc/callback":
            return await self._finish(request)
        return None

    async def _begin(self, next_path: str) -> web.StreamResponse:
        metadata = await self._provider()
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        pending = _Pending(verifier, nonce, next_path, time.monotonic() + PENDING_S)
        put_last(self._pending, state, pending, MAX_PENDING)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        parameters = {
            "response_type": "code",
            "client_id": self.settings.oidc_client_id,
            "redirect_uri": self.settings.oidc_redirect_url,
            "scope": self.settings.oidc_scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        response = see_other(f"{metadata['authorization_endpoint']}?{urlencode(parameters)}")
        # The browser that comes back must be the one that left. It comes from another site, so the
        # cookie cannot be Strict.
        response.set_cookie(
            _COOKIE, state, max_age=int(PENDING_S), httponly=True, secure=self.sessions.secure,
            samesite="Lax", path=self.base_path or "/",
        )  # fmt: skip
        return response

    async def _finish(self, request: web.Request) -> web.StreamResponse:
        state = request.query.get("state", "")
        pending = self._pending.pop(state, None)
        is_ours = is_same(state, request.cookies.get(_COOKIE, ""))
        if pending is None or not is_ours or time.monotonic() >= pending.until:
            raise LoginRefused("login.stale")
        if "error" in request.query:
            detail = request.query.get("error_description") or request.query["error"]
            raise LoginRefused(detail[:300])
        token = await self._exchange(request.query.get("code", ""), pending.verifier)
        claims = await self._claims(token, pending.nonce)
        name, identity = self._identity(token, claims)
        # The answer is a page of ours that continues: a redirect would still belong to the
        # navigation from the provider's site, with which browsers send no Strict cookie.
        response = web.Response(headers={"Refresh": f"0; url={pending.next_path}"}, text="")
        lifetime_s = max(0.0, float(claims["exp"]) - time.time())
        self.sessions.start(response, identity, name, lifetime_s)
        response.del_cookie(_COOKIE, path=self.base_path or "/")
        return response

    def _identity(self, token: str, claims: Mapping[str, Any]) -> tuple[str, Identity]:
        claim = self.settings.oidc_username_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name or name.startswith(RESERVED):
            raise LoginRefused(f"the ID token has no usable claim {claim!r}")
        if claim == "email" and claims.get("email_verified") is False:
            raise LoginRefused("the provider has not verified your address")
        if self.settings.oidc_pass_token:
            return name, Identity(token=token)
        given = claims.get(self.settings.oidc_groups_claim) or ()
        groups = given if isinstance(given, list) else [given]
        allowed = tuple(
            one for one in groups if isinstance(one, str) and one and not one.startswith(RESERVED)
        )
        return name, Identity(user=name, groups=allowed)

    async def _exchange(self, code: str, verifier: str) -> str:
        metadata = await self._provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.oidc_redirect_url,
            "client_id": self.settings.oidc_client_id,
            "code_verifier": verifier,
        }
        if self.settings.oidc_client_secret:
            form["client_secret"] = self.settings.oidc_client_secret
        answer = await _fetch("POST", metadata["token_endpoint"], form)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("the provider sent no ID token")
        return token

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        await self._provider()
        try:
            key = await self._signing_key(token)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self.settings.oidc_client_id,
                issuer=self.settings.oidc_issuer,
                leeway=30,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise LoginRefused(f"the ID token is not valid: {error}") from error
        if not is_same(str(claims.get("nonce", "")), nonce):
            raise LoginRefused("login.stale")
        return claims

    async def _signing_key(self, token: str) -> Any:
        """Return the key of a token; keys are read again if the provider has changed them."""
        key_id = jwt.get_unverified_header(token).get("kid")
        for cached in (self._keys, None):
            self._keys = cached or jwt.PyJWKSet.from_dict(
                dict(await _fetch("GET", self._metadata["jwks_uri"]))
            )
            for key in self._keys.keys:
                if key_id is None or key.key_id == key_id:
                    return key.key
        raise jwt.InvalidTokenError("the provider has no such key")

    async def _provider(self) -> Mapping[str, Any]:
        if time.monotonic() - self._read_at < METADATA_S:
            return self._metadata
        issuer = self.settings.oidc_issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        metadata = await _fetch("GET", address)
        if (named := metadata.get("issuer")) != issuer:
            raise LoginRefused(f"the provider calls itself {named!r}, not {issuer!r}")
        self._metadata, self._keys, self._read_at = metadata, None, time.monotonic()
        return metadata


async def _fetch(method: str, url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    connector = aiohttp.TCPConnector(ssl=public_authorities())
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, connector=connector) as session,
            session.request(method, url, data=form, allow_redirects=False) as answer,
        ):
            content = await answer.json(content_type=None)
            if answer.status != 200 or not isinstance(content, Mapping):
                raise LoginRefused(f"the provider answered with HTTP {answer.status}")
            return content
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise LoginRefused(f"the provider does not answer: {error}") from error
