"""Authentication: client certificates, bearer tokens, service account tokens.

The administrator's token is a random string in a file. The server signs service account tokens
(HMAC over a JSON payload, in JWT form).
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gangline.local.apiserver.auth.pki import ADMIN_GROUP, CertificateError
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.request import ANONYMOUS, RequestUser
from gangline.local.apiserver.storage.durable_files import write_durably

AUTHENTICATED = "system:authenticated"
ADMIN = RequestUser("gangline-admin", (ADMIN_GROUP, AUTHENTICATED))
_HEADER = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()


class TokenClaims(msgspec.Struct):
    """The payload of a service account token."""

    sub: str
    exp: int
    uid: str = ""
    aud: list[str] = []


class Authenticator:
    """Maps client certificates and Authorization headers to users."""

    def __init__(self, folder: Path) -> None:
        self.admin_token = _read_or_create_secret(folder / "admin.token")
        self.kubelet_token = _read_or_create_secret(folder / "kubelet.token")
        self._key = _read_or_create_secret(folder / "signing.key").encode()
        self._known = {self.admin_token: ADMIN}

    def authenticate(
        self, authorization: str, certificate: Mapping[str, Any] | None
    ) -> RequestUser | None:
        """Return the user, ``ANONYMOUS`` without credentials, or None if they are invalid."""
        if authorization:
            scheme, _, token = authorization.partition(" ")
            return self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
        return _certificate_user(certificate) if certificate else ANONYMOUS

    def authenticate_token(self, token: str) -> RequestUser | None:
        found = self._known.get(token)
        return found or self._service_account(token)

    def issue_token(
        self, namespace: str, name: str, uid: str, audiences: list[str], ends: int
    ) -> str:
        """Return a service account token that is valid until ``ends`` (Unix time)."""
        subject = f"system:serviceaccount:{namespace}:{name}"
        body = _encode_base64url(encode_json(TokenClaims(subject, ends, uid, audiences)))
        return f"{_HEADER}.{body}.{self._signature(body)}"

    def _service_account(self, token: str) -> RequestUser | None:
        header, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if header != _HEADER or not hmac.compare_digest(signature, self._signature(body)):
            return None
        try:
            claims = msgspec.json.decode(_decode_base64url(body), type=TokenClaims)
        except (ValueError, msgspec.DecodeError):
            return None
        if claims.exp < time.time():
            return None
        namespace = claims.sub.split(":")[2]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return RequestUser(claims.sub, groups, claims.uid)

    def _signature(self, body: str) -> str:
        return _encode_base64url(
            hmac.new(self._key, f"{_HEADER}.{body}".encode(), hashlib.sha256).digest()
        )


def _certificate_user(certificate: Mapping[str, Any]) -> RequestUser:
    attributes = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for kind, value in attributes if kind == "commonName"), "")
    groups = [value for kind, value in attributes if kind == "organizationName"]
    return RequestUser(name, (*groups, AUTHENTICATED))


def _read_or_create_secret(path: Path) -> str:
    if not path.exists():
        write_durably(path, secrets.token_urlsafe(32).encode())
    text = path.read_text().strip()
    if not text:  # an empty token would match a request without one
        raise CertificateError(f"{path} is empty: restore it, or remove it to create another")
    return text


def _encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
