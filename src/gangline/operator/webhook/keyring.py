"""The certificates that the copies of the operator share, and when which of them is used.

The model: one Secret holds what is served now, what is served next, and every authority that
callers have to trust. A certificate goes through it in three steps, each a write of the Secret by
whichever copy comes first, while the others read:

1. near the end of its life (or when the Secret was lost) another is put beside it as the next one;
2. every copy sees to it that callers trust the authorities of both;
3. some time after that (``settle``: caches of callers) the next one is served instead. The old
   authority stays trusted for a while, for copies that have not looked yet.

So there is no moment at which a caller meets a certificate that it does not trust. Only when
nothing usable is left, neither in the Secret nor in this process, is one served at once.
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
    """What the Secret holds."""

    serving: Pair
    next: Pair | None
    former: tuple[Authority, ...]
    """Authorities of certificates that some copy may still serve."""
    changed: datetime
    """When the last step was taken, on the clock of the copy that took it."""

    @property
    def trusted(self) -> tuple[Authority, ...]:
        """All authorities that callers have to trust, the oldest first."""
        pairs = [self.serving, *([self.next] if self.next else [])]
        return ordered([*self.former, *(pair.authority for pair in pairs)])

    def in_motion(self, now: datetime, validity: Validity) -> bool:
        """Whether copies may still be at different steps of a replacement."""
        return now < self.changed + 3 * validity.settle

    def ripe(self, validity: Validity) -> datetime:
        """When callers can be taken to trust the next certificate, if they have been told."""
        return self.changed + validity.settle


def ordered(authorities: list[Authority]) -> tuple[Authority, ...]:
    """Each once, the oldest first: every copy writes the same."""
    return tuple(sorted(set(authorities), key=lambda each: (each.issued, each.pem)))


def plan(
    found: Keyring | None,
    held: Pair | None,
    names: frozenset[str],
    now: datetime,
    validity: Validity,
    known: frozenset[Authority],
) -> Keyring:
    """Say what the Secret should hold; equal to ``found`` if it needs no change.

    Args:
        found: what it holds; None if it is missing or unusable.
        held: what this process serves, if it does.
        names: what the certificate has to be good for.
        now: the time.
        validity: how long certificates live.
        known: the authorities that callers have been told of.
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
    """Begin without a Secret; with what this process serves, so that callers notice nothing."""
    if held is None or not _usable(held, names, now):
        return Keyring(issue(names, now, validity.lifetime), None, (), _stamp(now))
    following = issue(names | held.names, now, validity.lifetime)
    return Keyring(held, following, (), _stamp(now))


def _at_once(found: Keyring, names: frozenset[str], now: datetime, validity: Validity) -> Keyring:
    """Replace a certificate that callers cannot accept any more: there is nothing to wait for."""
    former = ordered([*found.former, found.serving.authority])
    if found.next and _usable(found.next, names, now):
        return Keyring(found.next, None, former, _stamp(now))
    # Also good for what it was good for: copies of two settings must not replace it in turns.
    made = issue(names | found.serving.names, now, validity.lifetime)
    return Keyring(made, None, former, _stamp(now))


def _without_former(found: Keyring, now: datetime, validity: Validity) -> Keyring:
    """Forget authorities that nothing is served under any more."""
    if found.next is None and not found.in_motion(now, validity):
        return replace(found, former=())
    return replace(found, former=tuple(each for each in found.former if now < each.expires))


def _stamp(now: datetime) -> datetime:
    return now.replace(microsecond=0)


def read(data: Mapping[str, str]) -> Keyring:
    """Read a keyring out of a Secret's data.

    Raises:
        UnusableCertificate: it holds none that can be used; the message says why.
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
    # A next one that cannot be used is no loss: another is made when it is due.
    following = None
    with contextlib.suppress(UnusableCertificate):
        following = _pair(texts, NEXT_CERTIFICATE, NEXT_KEY, authorities)
    used = {serving.authority} | ({following.authority} if following else set())
    former = ordered([each for each in authorities if each not in used])
    return Keyring(serving, following, former, _changed(texts, following or serving))


def write(keyring: Keyring) -> dict[str, str]:
    """Put a keyring into the form of a Secret's data."""
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
        raise UnusableCertificate(f"{name} is no text in base64") from error
