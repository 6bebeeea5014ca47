"""Rotates the certificates that the operator's replicas share through a Secret.

The Secret contains the serving certificate, the next one, and every CA that callers must trust. A
rotation has three steps. Each is one write of the Secret, by the first replica that gets there; the
others read it:

1. near the end of its life (or after the Secret was lost) a next certificate is added;
2. every replica makes callers trust the CAs of both;
3. after the propagation time (``propagation``: caches of callers) the next certificate is served.
   The old CA stays trusted for a while, for replicas that have not read the Secret yet.

Invariant: a caller never meets a certificate that it does not trust. Only if no usable certificate
is left, neither in the Secret nor in this process, is a new one served immediately.
"""

import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gangline.operator.webhook.certificate import (
    CertificateAuthority,
    ServingCertificate,
    UnusableCertificate,
    issue_certificate,
    read_authorities,
    read_certificate,
)
from gangline.operator.webhook.settings import CertificateValidity

CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
CHANGED_AT = "changed"


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """The content of the Secret."""

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
    return tuple(sorted(set(authorities), key=lambda each: (each.issued, each.pem)))


def plan_rotation(
    stored: CertificateSet | None,
    serving: ServingCertificate | None,
    names: frozenset[str],
    now: datetime,
    validity: CertificateValidity,
    registered: frozenset[CertificateAuthority],
) -> CertificateSet:
    """Return the desired content of the Secret; equal to ``stored`` if no change is needed.

    Args:
        stored: its content; None if it is missing or unusable.
        serving: the certificate that this process serves; None if it serves none.
        names: the host names that the certificate must be valid for.
        now: the time.
        validity: how long certificates are valid.
        registered: the CAs in the webhook configurations.
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
    found: CertificateSet, names: frozenset[str], now: datetime, validity: CertificateValidity
) -> CertificateSet:
    """Replace a certificate that callers cannot accept any more: waiting would not help."""
    former = sort_authorities([*found.previous, found.serving.authority])
    if found.next and _is_usable(found.next, names, now):
        return CertificateSet(found.next, None, former, _stamp(now))
    # Valid for its former names too: replicas with different settings must not replace it in turns.
    made = issue_certificate(names | found.serving.names, now, validity.lifetime)
    return CertificateSet(made, None, former, _stamp(now))


def _drop_expired_authorities(
    found: CertificateSet, now: datetime, validity: CertificateValidity
) -> CertificateSet:
    """Drop CAs without a served certificate."""
    if found.next is None and not found.is_rotating(now, validity):
        return replace(found, previous=())
    return replace(found, previous=tuple(each for each in found.previous if now < each.expires))


def _stamp(now: datetime) -> datetime:
    return now.replace(microsecond=0)


def parse_certificate_set(data: Mapping[str, str]) -> CertificateSet:
    """Parse the data of the Secret.

    Raises:
        UnusableCertificate: it contains no usable certificate; the message gives the reason.
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
    former = sort_authorities([each for each in authorities if each not in used])
    return CertificateSet(serving, following, former, _changed(texts, following or serving))


def format_certificate_set(keyring: CertificateSet) -> dict[str, str]:
    """Convert to the data of a Secret."""
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
