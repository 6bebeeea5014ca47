"""Certificates of the webhook: their names and validity, and their rotation."""

import base64
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.operator.webhook import certificate
from gangline.operator.webhook.certificate import (
    CertificateAuthority,
    CertificateSet,
    ServingCertificate,
    UnusableCertificate,
    issue_certificate,
    plan_rotation,
    read_authorities,
    read_certificate,
)
from gangline.operator.webhook.settings import CertificateValidity

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NAMES = frozenset({"gangline-operator.system.svc", "127.0.0.1"})
DAY = timedelta(days=1)
VALIDITY = CertificateValidity()
NOTHING: frozenset[CertificateAuthority] = frozenset()


def a_pair(now: datetime = NOW, lifetime: timedelta = 90 * DAY, names=NAMES) -> ServingCertificate:
    return issue_certificate(names, now, lifetime)


def a_ring(
    serving: ServingCertificate | None = None,
    following: ServingCertificate | None = None,
    *former: CertificateAuthority,
) -> CertificateSet:
    return CertificateSet(serving or a_pair(), following, former, NOW)


def step(
    secret: CertificateSet | None,
    *,
    held: ServingCertificate | None = None,
    names: frozenset[str] = NAMES,
    now: datetime = NOW,
    registered: frozenset[CertificateAuthority] = NOTHING,
) -> CertificateSet:
    return plan_rotation(secret, held, names, now, VALIDITY, registered)


def reported(ring: CertificateSet) -> frozenset[CertificateAuthority]:
    return frozenset(ring.trusted)


def stored(ring: CertificateSet, **changed: str | bytes) -> dict[str, str]:
    """A Secret's data, with parts of it replaced."""
    data = certificate.format_certificate_set(ring)
    for name, value in changed.items():
        raw = value if isinstance(value, bytes) else value.encode()
        data[name.replace("_", ".")] = base64.b64encode(raw).decode()
    return data


def test_a_client_that_trusts_the_authority_accepts_the_certificate(tmp_path) -> None:
    pair = a_pair(datetime.now(UTC))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "pair").write_text(pair.certificate + pair.key)
    server.load_cert_chain(tmp_path / "pair")
    for name in NAMES:
        client = ssl.create_default_context(cadata=pair.authority.pem)
        _shake_hands(client, server, name)
    other = ssl.create_default_context(cadata=a_pair(datetime.now(UTC)).authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(other, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(ssl.create_default_context(cadata=pair.authority.pem), server, "elsewhere.svc")


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [ours, theirs, ours, theirs]
    for side in waiting:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    ours.do_handshake()


def test_a_key_does_not_show_in_logs() -> None:
    assert "PRIVATE" not in repr(a_ring(a_pair(), a_pair()))


def test_a_keyring_comes_back_as_it_was_written() -> None:
    ring = a_ring(a_pair(), a_pair(NOW + DAY), a_pair(NOW - DAY).authority)
    assert certificate.parse_certificate_set(certificate.format_certificate_set(ring)) == ring


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        pytest.param({"tls_key": a_pair().key}, "does not belong", id="another key"),
        pytest.param({"tls_crt": "junk"}, "tls.crt cannot be read", id="junk"),
        pytest.param({"tls_key": b"\xff\xfe"}, "tls.key is not base64 text", id="binary"),
        pytest.param({"tls_crt": ""}, "tls.crt is missing", id="empty"),
        pytest.param({"ca_crt": a_pair().authority.pem}, "not signed by any", id="other CA"),
        pytest.param({"ca_crt": "-----BEGIN CERTIFICATE-----"}, "ca.crt is not a list", id="cut"),
    ],
)
def test_damaged_secret_is_reported_with_its_reason(changed: dict, complaint: str) -> None:
    with pytest.raises(UnusableCertificate, match=complaint):
        certificate.parse_certificate_set(stored(a_ring(), **changed))


def test_values_that_are_not_base64_are_reported() -> None:
    data = stored(a_ring()) | {"tls.key": "%%%"}
    with pytest.raises(UnusableCertificate, match=r"tls\.key is not base64 text"):
        certificate.parse_certificate_set(data)


def test_a_damaged_next_certificate_does_not_cost_the_one_that_is_served() -> None:
    ring = a_ring(a_pair(), a_pair(NOW + DAY))
    parsed = certificate.parse_certificate_set(stored(ring, next_key="junk"))
    assert (parsed.serving, parsed.next) == (ring.serving, None)


def test_authorities_are_read_once_each_and_oldest_first() -> None:
    old, new = a_pair().authority, a_pair(NOW + DAY).authority
    assert read_authorities(new.pem + old.pem + new.pem) == [old, new]
    assert read_authorities("") == []


def test_a_certificate_for_another_purpose_without_names_is_refused() -> None:
    pair = a_pair()
    with pytest.raises(UnusableCertificate, match="cannot be read"):
        read_certificate(pair.authority.pem, pair.key, [pair.authority])


def test_a_certificate_is_replaced_in_three_steps() -> None:
    first = step(None)
    due = NOW + 60 * DAY
    assert step(first, now=due - timedelta(seconds=1)) == first

    both = step(first, now=due)
    assert both.serving == first.serving
    assert both.next is not None
    assert both.trusted == (first.serving.authority, both.next.authority)
    assert step(both, now=due, registered=reported(both)) == both, (
        "callers need time to learn of it"
    )

    later = due + VALIDITY.propagation
    assert step(both, now=later) == both, "callers have not seen it"
    second = step(both, now=later, registered=reported(both))
    assert second.serving == both.next
    assert second.trusted == both.trusted, "another copy may still serve the old one"

    much_later = later + 3 * VALIDITY.propagation
    assert step(second, now=much_later - timedelta(seconds=1)) == second
    assert step(second, now=much_later).trusted == (second.serving.authority,)


def test_a_lost_secret_comes_back_without_a_moment_of_mistrust_and_with_a_new_key_soon() -> None:
    held = a_pair()
    ring = step(None, held=held)
    assert ring.serving == held
    assert ring.next is not None
    after = step(ring, now=NOW + VALIDITY.propagation, registered=reported(ring))
    assert after.serving == ring.next
    assert after.serving.key != held.key


def test_a_lost_secret_is_not_restored_from_a_certificate_that_has_ended() -> None:
    held = a_pair(NOW - 100 * DAY)
    ring = step(None, held=held)
    assert ring.serving != held


def test_expired_certificate_is_replaced_immediately() -> None:
    late = NOW + 90 * DAY
    ring = step(a_ring(), now=late)
    assert ring.serving.expires > late
    assert ring.next is None


def test_a_certificate_for_other_names_is_replaced_by_one_for_all() -> None:
    """Two replicas with different addresses must not replace each other's certificate for ever."""
    first = step(None, names=frozenset({"10.0.0.1"}))
    second = step(first, names=frozenset({"10.0.0.2"}))
    assert second.serving.names == {"10.0.0.1", "10.0.0.2"}
    assert first.serving.authority in second.trusted
    assert step(second, names=frozenset({"10.0.0.1"})) == second


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    first = step(None)
    both = step(first, now=NOW + 60 * DAY)
    hour = timedelta(hours=1)
    assert step(first, now=NOW - hour) == first
    assert step(both, now=NOW + 60 * DAY - hour, registered=reported(both)) == both


@dataclass
class World:
    """Three replicas of the operator, the Secret, and the CAs that callers trust, over time."""

    now: datetime = NOW
    secret: CertificateSet | None = None
    held: dict[int, ServingCertificate | None] = field(
        default_factory=lambda: dict.fromkeys(range(3))
    )
    registered: dict[int, frozenset[CertificateAuthority]] = field(
        default_factory=lambda: dict.fromkeys(range(3), NOTHING)
    )
    looked: dict[int, datetime] = field(default_factory=lambda: dict.fromkeys(range(3), NOW))
    bundles: list[tuple[datetime, tuple[CertificateAuthority, ...]]] = field(default_factory=list)

    def look(self, copy: int) -> None:
        """One pass of ``Keeper.look``."""
        ring = plan_rotation(
            self.secret, self.held[copy], NAMES, self.now, VALIDITY, self.registered[copy]
        )
        self.secret = certificate.parse_certificate_set(certificate.format_certificate_set(ring))
        assert self.secret == ring
        before = (
            self.bundles[-1][1] if self.bundles and ring.is_rotating(self.now, VALIDITY) else ()
        )
        bundle = certificate.sort_authorities([*ring.trusted, *before])
        if not self.bundles or bundle != self.bundles[-1][1]:
            self.bundles.append((self.now, bundle))
        self.registered[copy] = reported(ring)
        self.held[copy] = ring.serving
        self.looked[copy] = self.now

    def pass_by(self, seconds: int) -> None:
        """Time passes; every running replica makes a pass each minute."""
        self.now += timedelta(seconds=seconds)
        for copy, when in self.looked.items():
            if self.held[copy] and self.now >= when + LOOK_EVERY:
                self.look(copy)

    def stop_all(self, days: int) -> None:
        self.held = dict.fromkeys(self.held)
        self.registered = dict.fromkeys(self.registered, NOTHING)
        self.now += timedelta(days=days)

    def callers_trust(self, pair: ServingCertificate) -> bool:
        """Whether callers do that have not seen the writes of the last minute."""
        written = [(when, bundle) for when, bundle in self.bundles]
        current = [
            bundle
            for number, (_, bundle) in enumerate(written)
            if number + 1 == len(written) or written[number + 1][0] > self.now - LOOK_EVERY
        ]
        return pair.expires > self.now and all(pair.authority in bundle for bundle in current)


LOOK_EVERY = timedelta(seconds=60)


MOVES = (
    *(("look", copy) for copy in (0, 0, 1, 2)),
    *(("pass", seconds) for seconds in (1, 30, 59, 59)),
    *(("restart", 0), ("restart", 1), ("lose", 0), ("lose", 0), ("holiday", 61), ("holiday", 100)),
)


@given(moves=st.lists(st.sampled_from(MOVES), min_size=10, max_size=60))
def test_callers_trust_the_served_certificate_after_any_change_of_the_secret(moves) -> None:
    """Restarts, renewals and a deleted Secret, with callers that notice changes late.

    A replica that finds neither certificate nor Secret serves a new one immediately.
    """
    world = World()
    began = world.now
    for move, number in moves:
        match move:
            case "look" | "restart":
                if move == "restart":
                    world.held[number], world.registered[number] = None, NOTHING
                if not any(world.held.values()) or not (world.secret or world.held[number]):
                    began = world.now
                world.look(number)
            case "lose":
                world.secret = None
            case "pass":
                world.pass_by(number)
            case "holiday":
                world.stop_all(number)
        for pair in filter(None, world.held.values()):
            if world.now > began + LOOK_EVERY:
                assert world.callers_trust(pair)
