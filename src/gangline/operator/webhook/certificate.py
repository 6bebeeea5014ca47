"""Issues and parses the certificates of the webhook.

Each serving certificate has a CA of its own, whose key is discarded after signing. So a leaked
Secret allows to impersonate the webhook and nothing else. A new certificate therefore has a new CA,
which callers must trust first (``rotation``). All keys are ECDSA P-256, which is fast to generate.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SKEW = timedelta(hours=1)
"""Allowed difference between the clocks of callers and ours."""
AUTHORITY = "gangline-operator webhook authority"


class UnusableCertificate(Exception):
    """A certificate or key cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A CA certificate that callers trust, as PEM."""

    pem: str
    issued: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A serving certificate with its key, as PEM, and the CA that signed it."""

    certificate: str
    key: str
    authority: CertificateAuthority
    names: frozenset[str]
    """Host names and addresses that the certificate is valid for."""
    issued: datetime
    expires: datetime

    def __repr__(self) -> str:
        """Omit the key: the text is used in logs and test messages."""
        return f"Pair(names={sorted(self.names)}, issued={self.issued}, expires={self.expires})"


def issue_certificate(
    names: Iterable[str], now: datetime, lifetime: timedelta
) -> ServingCertificate:
    """Issue a serving certificate for these names, and its CA."""
    begins, ends = now.replace(microsecond=0) - CLOCK_SKEW, now.replace(microsecond=0) + lifetime
    hosts_and_addresses = frozenset(names)
    # A unique name: of two CAs with one name a caller may try only the wrong one.
    issuer = _name(f"{AUTHORITY} {x509.random_serial_number():x}"[:64])
    signing_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        _builder(issuer, issuer, signing_key.public_key(), begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signing_key.public_key()), False)
        .sign(signing_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    hosts = x509.SubjectAlternativeName(
        [_general_name(name) for name in sorted(hosts_and_addresses)]
    )
    serving = (
        _builder(_name("gangline-operator"), issuer, key.public_key(), begins, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_id, critical=False)
        .add_extension(hosts, critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    trusted = CertificateAuthority(_pem(authority), begins + CLOCK_SKEW, ends)
    return ServingCertificate(
        _pem(serving), secret.decode(), trusted, hosts_and_addresses, begins + CLOCK_SKEW, ends
    )


def read_authorities(bundle: str) -> list[CertificateAuthority]:
    """Parse the CA certificates of a PEM bundle, sorted from oldest to newest.

    Raises:
        UnusableCertificate: the bundle contains something other than certificates.
    """
    try:
        found = x509.load_pem_x509_certificates(bundle.encode()) if bundle.strip() else []
        read = {_pem(certificate): certificate for certificate in found}
    except ValueError as error:
        raise UnusableCertificate(f"is not a list of certificates: {error}") from error
    authorities = [
        CertificateAuthority(pem, each.not_valid_before_utc + CLOCK_SKEW, each.not_valid_after_utc)
        for pem, each in read.items()
    ]
    return sorted(authorities, key=lambda authority: (authority.issued, authority.pem))


def read_certificate(
    certificate: str, key: str, authorities: Iterable[CertificateAuthority]
) -> ServingCertificate:
    """Parse a certificate and its key, and find the one of ``authorities`` that signed it.

    Raises:
        UnusableCertificate: they do not belong together, or one cannot be parsed.
    """
    try:
        serving = x509.load_pem_x509_certificate(certificate.encode())
        private = serialization.load_pem_private_key(key.encode(), password=None)
        hosts = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        same = private.public_key() == serving.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise UnusableCertificate(f"cannot be read: {error}") from error
    if not same:
        raise UnusableCertificate("has a key that does not belong to its certificate")
    signer = next((each for each in authorities if _signed(each, serving)), None)
    if signer is None:
        raise UnusableCertificate("is not signed by any of the stored authorities")
    return ServingCertificate(
        certificate,
        key,
        signer,
        frozenset(str(host.value) for host in hosts),
        serving.not_valid_before_utc + CLOCK_SKEW,
        min(serving.not_valid_after_utc, signer.expires),
    )


def _signed(authority: CertificateAuthority, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority.pem.encode())
        )
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
