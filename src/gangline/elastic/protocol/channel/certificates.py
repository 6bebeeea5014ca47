"""The certificates of a job's TLS connections, which both ends derive from the job's secret.

Each role, client and server, has an Ed25519 key that HKDF (RFC 5869) derives from the secret, and a
self-signed certificate of it. Ed25519 signatures have no random part (RFC 8032), and the other
fields are constants, so both ends compute the same two certificates. Each end accepts exactly the
certificate of the other role: whoever lacks the secret can neither connect nor listen.

Python's ``ssl`` has no pre-shared keys for TLS 1.3 before 3.13. TLS 1.3 has forward secrecy: the
secret, once known, does not decrypt recorded connections.
"""

import os
import ssl
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gangline.elastic.protocol.channel.job_secret import JobSecret

# The clocks of nodes may be wrong, so that the validity must not matter (RFC 5280, 4.1.2.5).
_VALID_FROM = datetime(2000, 1, 1)
_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59)


@dataclass(frozen=True, slots=True)
class TlsEnd:
    """What one end of a connection needs."""

    context: ssl.SSLContext
    other_certificate: bytes
    """The only certificate that the other end may show, in DER."""


@lru_cache(maxsize=16)  # a context takes milliseconds to make
def tls_end(secret: JobSecret, *, client: bool) -> TlsEnd:
    """Build the TLS context of the client's or the server's end."""
    client_key, server_key = (_derive_key(secret, role) for role in ("client", "server"))
    own_key, other_key = (client_key, server_key) if client else (server_key, client_key)
    own = _self_signed(own_key)
    other = _self_signed(other_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if client else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=other.public_bytes(Encoding.PEM).decode())
    if not client:
        context.num_tickets = 0  # connections are never resumed
    _load_own(context, own_key, own)
    return TlsEnd(context, other.public_bytes(Encoding.DER))


def _derive_key(secret: JobSecret, role: str) -> Ed25519PrivateKey:
    info = f"gangline elastic 2 {role}".encode()
    return Ed25519PrivateKey.from_private_bytes(HKDF(SHA256(), 32, None, info).derive(secret.key))


def _self_signed(key: Ed25519PrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gangline job")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, None)


def _load_own(
    context: ssl.SSLContext, key: Ed25519PrivateKey, certificate: x509.Certificate
) -> None:
    """Load a key that must not be written to a disk; ``ssl`` reads keys from files only."""
    descriptor = os.memfd_create("gangline-job-key", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(certificate.public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
