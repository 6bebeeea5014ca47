"""Authentication: client certificates, the administrator's token, service account tokens.

The administrator's token is a random string in a file. ``service_account_tokens`` issues and
verifies the tokens of service accounts.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.local.apiserver.auth.pki import ADMIN_GROUP, CertificateError
from gangline.local.apiserver.auth.service_account_tokens import (
    API_AUDIENCES,
    ServiceAccountTokens,
    TokenIdentity,
)
from gangline.local.apiserver.core.request import ANONYMOUS, AUTHENTICATED, RequestUser
from gangline.local.apiserver.storage.durable_files import write_durably
from gangline.local.apiserver.storage.store import ObjectStore

ADMIN = RequestUser("gangline-admin", (ADMIN_GROUP, AUTHENTICATED))


class Authenticator:
    """Maps client certificates and Authorization headers to users."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self.admin_token = _read_or_create_secret(folder / "admin.token")
        key = _read_or_create_secret(folder / "signing.key").encode()
        self.service_accounts = ServiceAccountTokens(key, store)

    def authenticate(
        self, authorization: str, certificate: Mapping[str, Any] | None
    ) -> RequestUser | None:
        """Return the user, ``ANONYMOUS`` without credentials, or None if they are invalid."""
        if authorization:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer":
                return None
            identity = self.authenticate_token(token.strip())
            return identity.user if identity else None
        return _certificate_user(certificate) if certificate else ANONYMOUS

    def authenticate_token(
        self, token: str, audiences: Sequence[str] = API_AUDIENCES
    ) -> TokenIdentity | None:
        """Return the identity of a token that is valid for one of ``audiences``, else None."""
        # Bytes: text outside of ASCII cannot be compared in constant time.
        sent = token.encode(errors="surrogateescape")
        if hmac.compare_digest(sent, self.admin_token.encode()):
            served = tuple(name for name in audiences if name in API_AUDIENCES)
            return TokenIdentity(ADMIN, served) if served else None
        return self.service_accounts.verify(token, audiences)


def _certificate_user(certificate: Mapping[str, Any]) -> RequestUser | None:
    attributes = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for kind, value in attributes if kind == "commonName"), "")
    groups = [value for kind, value in attributes if kind == "organizationName"]
    return RequestUser(name, (*groups, AUTHENTICATED)) if name else None


def _read_or_create_secret(path: Path) -> str:
    if not path.exists():
        write_durably(path, secrets.token_urlsafe(32).encode())
    text = path.read_text().strip()
    if not text:  # an empty token would match a request without one
        raise CertificateError(f"{path} is empty: restore it, or remove it to create another")
    return text
