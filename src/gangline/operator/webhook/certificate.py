"""Issues, parses and rotates the webhook's certificates, which replicas share through a Secret.

Each serving certificate has a CA of its own, whose key is discarded after signing: a leaked Secret
allows to impersonate the webhook and nothing else. Callers must therefore trust a new CA first. All
keys are ECDSA P-256, which is fast to generate. A rotation has three steps, each one write of the
Secret by the first replica that gets there:

1. near the end of its life (or after the Secret was lost) a next certificate is added;
2. every replica makes callers trust the CAs of both;
3. after the propagation time (caches of callers) the next certificate is served. The old CA stays
trusted for a while, for replicas that have not read the Secret yet.

Invariant: a caller never meets a certificate that it does not trust. Only if no usable certificate
is left, neither in the Secret nor in this process, is a new one served immediately.
"""

import base64
import binascii
import contextlib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gangline.operator.webhook.settings import CertificateValidity

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
    """Parse the CA certificates of a PEM bundle, sorted from oldest to newest. Raises
    UnusableCertificate: the bundle contains something other than certificates.
    """
    try:
        certificates = x509.load_pem_x509_certificates(bundle.encode()) if bundle.strip() else []
        read = {_pem(certificate): certificate for certificate in certificates}
    except ValueError as error:
        raise UnusableCertificate(f"is not a list of certificates: {error}") from error
    authorities = [
        CertificateAuthority(
            pem, parsed.not_valid_before_utc + CLOCK_SKEW, parsed.not_valid_after_utc
        )
        for pem, parsed in read.items()
    ]
    return sorted(authorities, key=lambda authority: (authority.issued, authority.pem))


def read_certificate(
    certificate: str, key: str, authorities: Iterable[CertificateAuthority]
) -> ServingCertificate:
    """Parse a certificate and its key, and find the one of ``authorities`` that signed it. Raises
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
    signer = next((authority for authority in authorities if _signed(authority, serving)), None)
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


CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
CHANGED_AT = "changed"


@dataclass(frozen=True, slots=True)
class CertificateSet:
    serving: ServingCertificate
    next: ServingCertificate | None
    previous: tuple[CertificateAuthority, ...]
    """CAs of certificates that some replica may still serve."""
    changed_at: datetime
    """Time of the last step, by the clock of the replica that wrote it."""

    @property
    def trusted(self) -> tuple[CertificateAuthority, ...]:
        """All CAs that callers must trust, sorted from oldest to newest."""
        pairs = [self.serving, *([self.next] if self.next else [])]
        return sort_authorities([*self.previous, *(pair.authority for pair in pairs)])

    def is_rotating(self, now: datetime, validity: CertificateValidity) -> bool:
        """Return whether replicas may be at different steps of a rotation."""
        return now < self.changed_at + 3 * validity.propagation

    def promotion_time(self, validity: CertificateValidity) -> datetime:
        """Return when callers trust the next certificate, provided that it is registered."""
        return self.changed_at + validity.propagation


def sort_authorities(authorities: list[CertificateAuthority]) -> tuple[CertificateAuthority, ...]:
    """Sort without duplicates, oldest first: every replica writes the same bundle."""
    return tuple(sorted(set(authorities), key=lambda authority: (authority.issued, authority.pem)))


def plan_rotation(
    stored: CertificateSet | None,
    serving: ServingCertificate | None,
    names: frozenset[str],
    now: datetime,
    validity: CertificateValidity,
    registered: frozenset[CertificateAuthority],
) -> CertificateSet:
    """Return the desired content of the Secret; equal to ``stored`` if no change is needed.

    ``stored`` is None if the Secret is missing or unusable, ``serving`` if this process serves no
    certificate. ``registered`` are the CAs in the webhook configurations.
    """
    if stored is None:
        return _without_secret(serving, names, now, validity)
    stored = _drop_expired_authorities(stored, now, validity)
    if not _is_usable(stored.serving, names, now):
        return _replace_immediately(stored, names, now, validity)
    following = stored.next
    if following is None:
        if now < stored.serving.expires - validity.renew_before:
            return stored
        made = issue_certificate(names | stored.serving.names, now, validity.lifetime)
        return replace(stored, next=made, changed_at=_stamp(now))
    if not _is_usable(following, names, now):
        made = issue_certificate(names | following.names, now, validity.lifetime)
        return replace(stored, next=made, changed_at=_stamp(now))
    if following.authority in registered and now >= stored.promotion_time(validity):
        former = sort_authorities([*stored.previous, stored.serving.authority])
        return CertificateSet(following, None, former, _stamp(now))
    return stored


def _is_usable(pair: ServingCertificate, names: frozenset[str], now: datetime) -> bool:
    return now < pair.expires and names <= pair.names


def _without_secret(
    serving: ServingCertificate | None,
    names: frozenset[str],
    now: datetime,
    validity: CertificateValidity,
) -> CertificateSet:
    """Start without a Secret, from the served certificate, which callers trust."""
    if serving is None or not _is_usable(serving, names, now):
        return CertificateSet(
            issue_certificate(names, now, validity.lifetime), None, (), _stamp(now)
        )
    following = issue_certificate(names | serving.names, now, validity.lifetime)
    return CertificateSet(serving, following, (), _stamp(now))


def _replace_immediately(
    current: CertificateSet, names: frozenset[str], now: datetime, validity: CertificateValidity
) -> CertificateSet:
    """Replace a certificate that callers cannot accept any more: waiting would not help."""
    former = sort_authorities([*current.previous, current.serving.authority])
    if current.next and _is_usable(current.next, names, now):
        return CertificateSet(current.next, None, former, _stamp(now))
    # Valid for its former names too: replicas with different settings must not replace it in turns.
    made = issue_certificate(names | current.serving.names, now, validity.lifetime)
    return CertificateSet(made, None, former, _stamp(now))


def _drop_expired_authorities(
    current: CertificateSet, now: datetime, validity: CertificateValidity
) -> CertificateSet:
    """Drop CAs without a served certificate."""
    if current.next is None and not current.is_rotating(now, validity):
        return replace(current, previous=())
    return replace(
        current,
        previous=tuple(authority for authority in current.previous if now < authority.expires),
    )


def _stamp(now: datetime) -> datetime:
    return now.replace(microsecond=0)


def parse_certificate_set(data: Mapping[str, str]) -> CertificateSet:
    """Parse the data of the Secret. Raises UnusableCertificate: it contains no usable certificate;
    the message gives the reason.
    """
    texts = {name: _text(name, data[name]) for name in data}
    missing = [name for name in (CERTIFICATE, KEY, AUTHORITIES) if not texts.get(name)]
    if missing:
        raise UnusableCertificate(f"{', '.join(missing)} is missing or empty")
    try:
        authorities = read_authorities(texts[AUTHORITIES])
    except UnusableCertificate as error:
        raise UnusableCertificate(f"{AUTHORITIES} {error}") from error
    serving = _pair(texts, CERTIFICATE, KEY, authorities)
    # An unusable next certificate is ignored: another one is issued when it is due.
    following = None
    with contextlib.suppress(UnusableCertificate):
        following = _pair(texts, NEXT_CERTIFICATE, NEXT_KEY, authorities)
    used = {serving.authority} | ({following.authority} if following else set())
    former = sort_authorities([authority for authority in authorities if authority not in used])
    return CertificateSet(serving, following, former, _changed(texts, following or serving))


def format_certificate_set(keyring: CertificateSet) -> dict[str, str]:
    texts = {
        CERTIFICATE: keyring.serving.certificate,
        KEY: keyring.serving.key,
        AUTHORITIES: "".join(authority.pem for authority in keyring.trusted),
        CHANGED_AT: keyring.changed_at.isoformat(),
    }
    if keyring.next:
        texts |= {NEXT_CERTIFICATE: keyring.next.certificate, NEXT_KEY: keyring.next.key}
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def _pair(
    texts: Mapping[str, str], certificate: str, key: str, authorities: list[CertificateAuthority]
) -> ServingCertificate:
    try:
        return read_certificate(texts.get(certificate, ""), texts.get(key, ""), authorities)
    except UnusableCertificate as error:
        raise UnusableCertificate(f"{certificate} {error}") from error


def _changed(texts: Mapping[str, str], newest: ServingCertificate) -> datetime:
    try:
        changed = datetime.fromisoformat(texts.get(CHANGED_AT, ""))
    except ValueError:
        return newest.issued
    return changed if changed.tzinfo else newest.issued


def _text(name: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise UnusableCertificate(f"{name} is not base64 text") from error
