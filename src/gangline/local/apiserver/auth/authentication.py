"""Authentication: client certificates, the administrator's token, service account tokens.

The administrator's token is a random string in a file. Service account tokens are JSON web tokens
with the claims of Kubernetes, signed with ES256 (RFC 7518); others can check them by the published
keys. A token is valid for its audiences, until its
expiration, and as long as its account and the object that it is bound to exist: both are looked up
by name and UID at each use, in the committed state.
"""

import base64
import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256

from gangline.local.apiserver.auth.pki import ADMIN_GROUP, CertificateError, load_signing_key
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ANONYMOUS, AUTHENTICATED, RequestUser
from gangline.local.apiserver.storage.durable_files import write_durably
from gangline.local.apiserver.storage.store import ObjectStore

ISSUER = "https://kubernetes.default.svc"
API_AUDIENCES = (ISSUER,)
"""The audiences of this server: those of a token that is requested without any."""
ACCOUNT_PREFIX = "system:serviceaccount:"
DELETION_LEEWAY_S = 60.0
"""A terminating object keeps its tokens this long after its grace period, as in Kubernetes."""
MAX_TOKEN_CHARS = 16 << 10
ALGORITHM = "ES256"
_CHECKED_TOKENS = 512
_WORD = 32
"""Bytes of a number in keys and signatures of the curve P-256."""


class ObjectClaim(msgspec.Struct, frozen=True):
    """Name and UID of an object in a token."""

    name: str
    uid: str


class KubernetesClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims about the account and the object that the token is bound to."""

    namespace: str
    serviceaccount: ObjectClaim
    pod: ObjectClaim | None = None
    secret: ObjectClaim | None = None
    node: ObjectClaim | None = None


class TokenClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a token. Times are seconds of Unix time."""

    sub: str
    exp: int
    aud: list[str]
    iss: str
    iat: int
    nbf: int
    jti: str
    kubernetes: KubernetesClaims = msgspec.field(name="kubernetes.io")


class BoundObject(NamedTuple):
    """The object that a token is bound to."""

    kind: str
    """``Pod``, ``Secret`` or ``Node``."""
    claim: ObjectClaim
    node: ObjectClaim | None = None
    """The node of the pod; its UID is empty if it is not registered."""
    content: Json | None = None
    """The object itself."""


class TokenIdentity(NamedTuple):
    """The user of a valid token, and those of the requested audiences that it is valid for."""

    user: RequestUser
    audiences: tuple[str, ...]


class _Metadata(msgspec.Struct):
    uid: str = ""
    deletion_timestamp: datetime | None = msgspec.field(name="deletionTimestamp", default=None)


class _StoredObject(msgspec.Struct):
    metadata: _Metadata


_decode_object = msgspec.json.Decoder(_StoredObject).decode
_decode_claims = msgspec.json.Decoder(TokenClaims).decode


class ServiceAccountTokens:
    """Issues and verifies the tokens of the accounts in a store."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        store: ObjectStore,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._store = store
        self._now = now
        self.public_key = _public_key(key)
        """As a JSON web key (RFC 7517)."""
        header = {"alg": ALGORITHM, "kid": self.public_key["kid"], "typ": "JWT"}
        self._header = _encode_base64url(encode_json(header))
        # A check takes 0.1 ms. What a signature says does not change.
        self._read = lru_cache(_CHECKED_TOKENS)(self._read_signed)

    def issue(
        self,
        namespace: str,
        account: ObjectClaim,
        audiences: Sequence[str],
        lifetime_s: int,
        bound: BoundObject | None = None,
    ) -> tuple[str, int]:
        """Return a token and its expiration in Unix time."""
        now = int(self._now())
        objects: dict[str, ObjectClaim] = {}
        if bound is not None:
            objects[bound.kind.lower()] = bound.claim
            if bound.node is not None and bound.node.uid:
                objects["node"] = bound.node
        claims = TokenClaims(
            sub=f"{ACCOUNT_PREFIX}{namespace}:{account.name}",
            exp=now + lifetime_s,
            aud=list(audiences),
            iss=ISSUER,
            iat=now,
            nbf=now,
            jti=str(uuid.uuid4()),
            kubernetes=KubernetesClaims(namespace, account, **objects),
        )
        return self._sign(encode_json(claims)), claims.exp

    def _sign(self, payload: bytes) -> str:
        signed = f"{self._header}.{_encode_base64url(payload)}"
        numbers = utils.decode_dss_signature(self._key.sign(signed.encode(), _ECDSA))
        signature = b"".join(number.to_bytes(_WORD, "big") for number in numbers)
        return f"{signed}.{_encode_base64url(signature)}"

    def verify(self, token: str, audiences: Sequence[str] = API_AUDIENCES) -> TokenIdentity | None:
        """Return the identity of a token, or None if it is not valid (any more).

        ``audiences`` are those that the token is presented to.
        """
        claims = self._read(token)
        if claims is None:
            return None
        now = self._now()
        accepted = tuple(name for name in audiences if name in claims.aud)
        account = _account(claims)
        if not accepted or account is None or claims.exp <= now or claims.nbf > now + 60:
            return None
        required = [("serviceaccounts.", f"{account.namespace}/", account.serviceaccount)]
        if account.pod is not None:
            required.append(("pods.", f"{account.namespace}/", account.pod))
        elif account.secret is not None:
            required.append(("secrets.", f"{account.namespace}/", account.secret))
        elif account.node is not None:
            # API rule: beside a pod the node is only a note.
            required.append(("nodes.", "", account.node))
        if not all(self._exists(*owner) for owner in required):
            return None
        return TokenIdentity(_user(claims, account), accepted)

    def _read_signed(self, token: str) -> TokenClaims | None:
        """Return the claims of a token with a valid signature, else None."""
        if len(token) > MAX_TOKEN_CHARS or not token.isascii():
            return None
        signed, _, signature = token.rpartition(".")
        header, _, body = signed.partition(".")
        if header != self._header:
            return None
        try:
            raw = _decode_base64url(signature)
            numbers = (int.from_bytes(raw[:_WORD], "big"), int.from_bytes(raw[_WORD:], "big"))
            encoded = utils.encode_dss_signature(*numbers)
            self._key.public_key().verify(encoded, signed.encode(), _ECDSA)
            claims = _decode_claims(_decode_base64url(body))
        except (ValueError, msgspec.DecodeError, InvalidSignature):
            return None
        # Base64 has several texts for the same bytes; a token has one.
        is_canonical = len(raw) == 2 * _WORD and _encode_base64url(raw) == signature
        return claims if is_canonical and claims.iss == ISSUER else None

    def _exists(self, topic: str, prefix: str, claim: ObjectClaim) -> bool:
        record = self._store.cache(topic).records.get(f"{prefix}{claim.name}")
        if record is None:
            return False
        meta = _decode_object(record.body).metadata
        if meta.uid != claim.uid:
            return False
        ends = meta.deletion_timestamp
        return ends is None or self._now() < ends.timestamp() + DELETION_LEEWAY_S


_ECDSA = ec.ECDSA(SHA256())


def _public_key(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    x, y = (_encode_base64url(part.to_bytes(_WORD, "big")) for part in (numbers.x, numbers.y))
    # RFC 7638: the thumbprint of a key is that of its required members, in this order.
    required = {"crv": "P-256", "kty": "EC", "x": x, "y": y}
    kid = _encode_base64url(hashlib.sha256(encode_json(required)).digest())
    return {"alg": ALGORITHM, "kid": kid, "use": "sig", **required}


def _account(claims: TokenClaims) -> KubernetesClaims | None:
    """Return the claims about the account; None if they contradict the subject."""
    stated = claims.kubernetes
    subject = f"{ACCOUNT_PREFIX}{stated.namespace}:{stated.serviceaccount.name}"
    return stated if claims.sub == subject else None


def _user(claims: TokenClaims, account: KubernetesClaims) -> RequestUser:
    extra = [("authentication.kubernetes.io/credential-id", f"JTI={claims.jti}")]
    for kind, bound in (("pod", account.pod), ("node", account.node)):
        if bound is not None:
            extra.append((f"authentication.kubernetes.io/{kind}-name", bound.name))
            extra.append((f"authentication.kubernetes.io/{kind}-uid", bound.uid))
    return RequestUser(
        claims.sub,
        ("system:serviceaccounts", f"system:serviceaccounts:{account.namespace}", AUTHENTICATED),
        account.serviceaccount.uid,
        tuple((name, (value,)) for name, value in extra),
    )


def _encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


ADMIN = RequestUser("gangline-admin", (ADMIN_GROUP, AUTHENTICATED))


class Authenticator:
    """Maps client certificates and Authorization headers to users."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self.admin_token = _read_or_create_secret(folder / "admin.token")
        key = load_signing_key(folder / "token-signing.key")
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
