"""Authentication: client certificates, bearer tokens, service account tokens.

The administrator's token is a random string in a file. The server signs service account tokens
(HMAC over a JSON payload, in JWT form).
"""

import base64
import hashlib
import hmac
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from gangline.local.apiserver.negotiation import encode
from gangline.local.apiserver.pki import ADMIN_GROUP, write_private
from gangline.local.apiserver.request import ANONYMOUS, User

AUTHENTICATED = "system:authenticated"
ADMIN = User("gangline-admin", (ADMIN_GROUP, AUTHENTICATED))
_HEADER = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()


class Claims(msgspec.Struct):
    """The payload of a service account token."""

    sub: str
    exp: int
    uid: str = ""
    aud: list[str] = []


class Authenticator:
    """Maps client certificates and Authorization headers to users."""

    def __init__(self, folder: Path) -> None:
        self.admin_token = _secret(folder / "admin.token")
        self.kubelet_token = _secret(folder / "kubelet.token")
        self._key = _secret(folder / "signing.key").encode()
        self._known = {self.admin_token: ADMIN}

    def user(self, authorization: str, certificate: Any) -> User | None:
        """Return the user, ``ANONYMOUS`` without credentials, or None if they are invalid."""
        if authorization:
            scheme, _, token = authorization.partition(" ")
            return self.by_token(token.strip()) if scheme.lower() == "bearer" else None
        return _named_by(certificate) if certificate else ANONYMOUS

    def by_token(self, token: str) -> User | None:
        found = self._known.get(token)
        return found or self._service_account(token)

    def issue(self, namespace: str, name: str, uid: str, audiences: list[str], ends: int) -> str:
        """Return a service account token that is valid until ``ends`` (Unix time)."""
        subject = f"system:serviceaccount:{namespace}:{name}"
        body = _text(encode(Claims(subject, ends, uid, audiences)))
        return f"{_HEADER}.{body}.{self._signature(body)}"

    def _service_account(self, token: str) -> User | None:
        header, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if header != _HEADER or not hmac.compare_digest(signature, self._signature(body)):
            return None
        try:
            claims = msgspec.json.decode(_raw(body), type=Claims)
        except (ValueError, msgspec.DecodeError):
            return None
        if claims.exp < time.time():
            return None
        namespace = claims.sub.split(":")[2]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return User(claims.sub, groups, claims.uid)

    def _signature(self, body: str) -> str:
        return _text(hmac.new(self._key, f"{_HEADER}.{body}".encode(), hashlib.sha256).digest())


def _named_by(certificate: Any) -> User:
    attributes = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for kind, value in attributes if kind == "commonName"), "")
    groups = [value for kind, value in attributes if kind == "organizationName"]
    return User(name, (*groups, AUTHENTICATED))


def _secret(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_text().strip()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
