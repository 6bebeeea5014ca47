"""The keys and certificates of a job's processes, computed from the job's secret.

Only Python's standard library is used: training images need no further package for this. Each role,
client and server, has an Ed25519 key (RFC 8032, 5.1) that HKDF (RFC 5869) derives from the secret,
and a self-signed certificate of it. Ed25519 signatures have no random part, and all other fields of
the certificate are constants, so every process computes the same two certificates.

The arithmetic takes different time for different keys. Each process signs one constant message
once, so that nobody can measure this often enough to learn from it.
"""

import base64
import hashlib
import hmac
import ssl
from functools import cache
from typing import NamedTuple

_P = 2**255 - 19
"""The prime of the curve's field."""
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 4 * pow(5, -1, _P) % _P

_Point = tuple[int, int, int, int]
"""Extended coordinates X, Y, Z, T of a point: x = X/Z, y = Y/Z, x y = T/Z."""
_ZERO: _Point = (0, 1, 1, 0)


def _add(a: _Point, b: _Point) -> _Point:
    """Add two points (RFC 8032, 5.1.4)."""
    first, second = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    third, fourth = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = second - first, fourth - third, fourth + third, second + first
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


@cache
def _base_doubled() -> list[_Point]:
    """The base point times 1, 2, 4 and so on."""
    points: list[_Point] = [(_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)]
    for _ in range(254):
        points.append(_add(points[-1], points[-1]))
    return points


def _times_base(factor: int) -> bytes:
    """The base point times ``factor``, below 2**255, encoded (RFC 8032, 5.1.2)."""
    total = _ZERO
    for bit, point in enumerate(_base_doubled()):
        if factor >> bit & 1:
            total = _add(total, point)
    inverse = pow(total[2], -1, _P)
    x, y = total[0] * inverse % _P, total[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


class SigningKey:
    """A private key of Ed25519."""

    def __init__(self, seed: bytes) -> None:
        digest = hashlib.sha512(seed).digest()
        self._scalar = int.from_bytes(digest[:32], "little") & ~7 & ~(1 << 255) | 1 << 254
        self._prefix = digest[32:]
        self.public = _times_base(self._scalar)
        """The public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes (RFC 8032, 5.1.6)."""
        nonce = _hash(self._prefix, message) % _ORDER
        commitment = _times_base(nonce)
        challenge = _hash(commitment, self.public, message)
        answer = (nonce + challenge * self._scalar) % _ORDER
        return commitment + answer.to_bytes(32, "little")


# DER of a certificate of version 3 with the serial number 1, for Ed25519 (RFC 8410), issued by and
# for "CN=gangline job", valid from 2000 to 9999: clocks of nodes may be wrong (RFC 5280, 4.1.2.5).
# It has one extension: basicConstraints, critical, an authority with the path length 0.
_BEFORE_KEY = bytes.fromhex(
    "3081a7a003020102020101300506032b657030173115301306035504030c0c67616e676c696e65206a6f623020"
    "170d3030303130313030303030305a180f39393939313233313233353935395a30173115301306035504030c0c"
    "67616e676c696e65206a6f62302a300506032b6570032100"
)
_AFTER_KEY = bytes.fromhex("a316301430120603551d130101ff040830060101ff020100")
_BEFORE_CONTENT, _BEFORE_SIGNATURE = bytes.fromhex("3081f4"), bytes.fromhex("300506032b6570034100")
_BEFORE_SEED = bytes.fromhex("302e020100300506032b657004220420")
"""PKCS #8 of a private key (RFC 8410, 7)."""


class RoleIdentity(NamedTuple):
    """The certificate of a role, and its private key."""

    certificate: bytes
    """In DER."""
    seed: bytes

    def to_pem(self) -> bytes:
        """Return private key and certificate as ``ssl`` reads them from a file."""
        key = base64.b64encode(_BEFORE_SEED + self.seed).decode()
        text = f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"
        return (text + ssl.DER_cert_to_PEM_cert(self.certificate)).encode()


def derive_identity(secret: bytes, role: str) -> RoleIdentity:
    """Derive key and certificate of ``role`` from the secret of a job."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), secret, "sha256")
    seed = hmac.digest(extracted, f"gangline elastic 2 {role}".encode() + b"\x01", "sha256")
    key = SigningKey(seed)
    content = _BEFORE_KEY + key.public + _AFTER_KEY
    return RoleIdentity(_BEFORE_CONTENT + content + _BEFORE_SIGNATURE + key.sign(content), seed)
