"""Rotates the certificates that the operator's replicas share through a Secret.

The Secret contains the serving certificate, the next one, and every CA that callers must trust. A
rotation has three steps. Each is one write of the Secret, by the first replica that gets there; the
others read it:

1. near the end of its life (or after the Secret was lost) a next certificate is added;
2. every replica makes callers trust the CAs of both;
3. after the propagation time (``settle``: caches of callers) the next certificate is served. The
old
   CA stays trusted for a while, for replicas that have not read the Secret yet.

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
    Authority,
    Pair,
    UnusableCertificate,
    issue,
    read_authorities,
    read_pair,
)
from gangline.operator.webhook.settings import Validity

CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The content of the Secret."""

    serving: Pair
    next: Pair | None
    former: tuple[Authority, ...]
    """CAs of certificates that some replica may still serve."""
    changed: datetime
    """Time of the last step, by the clock of the replica that wrote it."""

    @property
    def trusted(self) -> tuple[Authority, ...]:
        """All CAs that callers must trust, sorted from oldest to newest."""
        pairs = [self.serving, *([self.next] if self.next else [])]
        return ordered([*self.former, *(pair.authority for pair in pairs)])

    def in_motion(self, now: datetime, validity: Validity) -> bool:
        """Return whether replicas may be at different steps of a rotation."""
        return now < self.changed + 3 * validity.settle

    def ripe(self, validity: Validity) -> datetime:
        """Return when callers trust the next certificate, provided that it is registered."""
        return self.changed + validity.settle


def ordered(authorities: list[Authority]) -> tuple[Authority, ...]:
    """Sort without duplicates, oldest first: every replica writes the same bundle."""
    return tuple(sorted(set(authorities), key=lambda each: (each.issued, each.pem)))


def plan(
    found: Keyring | None,
    held: Pair | None,
    names: frozenset[str],
    now: datetime,
    validity: Validity,
    known: frozenset[Authority],
) -> Keyring:
    """Return the desired content of the Secret; equal to ``found`` if no change is needed.

    Args:
        found: its content; None if it is missing or unusable.
        held: the certificate that this process serves; None if it serves none.
        names: the host names that the certificate must be valid for.
        now: the time.
        validity: how long certificates are valid.
        known: the CAs in the webhook configurations.
    """
    if found is None:
        return _anew(held, names, now, validity)
    found = _without_former(found, now, validity)
    if not _usable(found.serving, names, now):
        return _at_once(found, names, now, validity)
    following = found.next
    if following is None:
        if now < found.serving.expires - validity.renewed_before:
            return found
        made = issue(names | found.serving.names, now, validity.lifetime)
        return replace(found, next=made, changed=_stamp(now))
    if not _usable(following, names, now):
        made = issue(names | following.names, now, validity.lifetime)
        return replace(found, next=made, changed=_stamp(now))
    if following.authority in known and now >= found.ripe(validity):
        former = ordered([*found.former, found.serving.authority])
        return Keyring(following, None, former, _stamp(now))
    return found


def _usable(pair: Pair, names: frozenset[str], now: datetime) -> bool:
    return now < pair.expires and names <= pair.names


def _anew(held: Pair | None, names: frozenset[str], now: datetime, validity: Validity) -> Keyring:
    """Start without a Secret, from the served certificate, which callers trust."""
    if held is None or not _usable(held, names, now):
        return Keyring(issue(names, now, validity.lifetime), None, (), _stamp(now))
    following = issue(names | held.names, now, validity.lifetime)
    return Keyring(held, following, (), _stamp(now))


def _at_once(found: Keyring, names: frozenset[str], now: datetime, validity: Validity) -> Keyring:
    """Replace a certificate that callers cannot accept any more: waiting would not help."""
    former = ordered([*found.former, found.serving.authority])
    if found.next and _usable(found.next, names, now):
        return Keyring(found.next, None, former, _stamp(now))
    # Valid for its former names too: replicas with different settings must not replace it in turns.
    made = issue(names | found.serving.names, now, validity.lifetime)
    return Keyring(made, None, former, _stamp(now))


def _without_former(found: Keyring, now: datetime, validity: Validity) -> Keyring:
    """Drop CAs without a served certificate."""
    if found.next is None and not found.in_motion(now, validity):
        return replace(found, former=())
    return replace(found, former=tuple(each for each in found.former if now < each.expires))


def _stamp(now: datetime) -> datetime:
    return now.replace(microsecond=0)


def read(data: Mapping[str, str]) -> Keyring:
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
    former = ordered([each for each in authorities if each not in used])
    return Keyring(serving, following, former, _changed(texts, following or serving))


def write(keyring: Keyring) -> dict[str, str]:
    """Convert to the data of a Secret."""
    texts = {
        CERTIFICATE: keyring.serving.certificate,
        KEY: keyring.serving.key,
        AUTHORITIES: "".join(authority.pem for authority in keyring.trusted),
        CHANGED: keyring.changed.isoformat(),
    }
    if keyring.next:
        texts |= {NEXT_CERTIFICATE: keyring.next.certificate, NEXT_KEY: keyring.next.key}
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def _pair(
    texts: Mapping[str, str], certificate: str, key: str, authorities: list[Authority]
) -> Pair:
    try:
        return read_pair(texts.get(certificate, ""), texts.get(key, ""), authorities)
    except UnusableCertificate as error:
        raise UnusableCertificate(f"{certificate} {error}") from error


def _changed(texts: Mapping[str, str], newest: Pair) -> datetime:
    try:
        changed = datetime.fromisoformat(texts.get(CHANGED, ""))
    except ValueError:
        return newest.issued
    return changed if changed.tzinfo else newest.issued


def _text(name: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise UnusableCertificate(f"{name} is not base64 text") from error
