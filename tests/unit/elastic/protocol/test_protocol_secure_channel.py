"""The encrypted channel and its certificates."""

import secrets
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.elastic.protocol.certificate import SigningKey, derive_identity
from gangline.elastic.protocol.channel import (
    MAX_FIRST_FRAME_BYTES,
    JobSecret,
    OtherVersionError,
    SecureChannel,
    SecureChannelError,
    check_preamble,
    read_job_secret,
    tls_end,
)

SECRET = JobSecret(b"s" * 32)


def exchange(one: SecureChannel, other: SecureChannel) -> tuple[list[bytes], list[bytes]]:
    """Pass bytes in both directions until both are silent; return what each received."""
    received: tuple[list[bytes], list[bytes]] = ([], [])
    while (up := one.output()) + (down := other.output()):
        received[1].extend(other.feed(up))
        received[0].extend(one.feed(down))
    return received


def established(
    secret: JobSecret = SECRET, other: JobSecret = SECRET
) -> tuple[SecureChannel, SecureChannel]:
    client, server = SecureChannel(secret, client=True), SecureChannel(other, client=False)
    exchange(client, server)
    return client, server


@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 97))
def test_contents_arrive_complete_and_in_order_for_any_split_of_the_stream(
    contents: list[bytes], step: int
) -> None:
    client, server = established()
    stream = b"".join(client.encrypt_frame(content) for content in contents)
    received = [
        content
        for start in range(0, len(stream), step)
        for content in server.feed(stream[start : start + step])
    ]
    assert received == contents


@given(st.binary(max_size=600), st.integers(1, 7))
def test_the_handshake_succeeds_for_any_split_of_the_stream(content: bytes, step: int) -> None:
    client, server = SecureChannel(SECRET, client=True), SecureChannel(SECRET, client=False)
    while not (client.is_established and server.is_established):
        for one, other in ((client, server), (server, client)):
            sent = one.output()
            for start in range(0, len(sent), step):
                assert not list(other.feed(sent[start : start + step]))
    assert list(server.feed(client.encrypt_frame(content))) == [content]


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_bit_is_detected(content: bytes, data: st.DataObject) -> None:
    client, server = established()
    frame = bytearray(client.encrypt_frame(content))
    # The first five bytes are TLS' record header: a longer record would still be awaited.
    frame[data.draw(st.integers(5, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SecureChannelError):
        list(server.feed(bytes(frame)))


def test_a_client_with_another_secret_refuses_the_server_and_both_know_why() -> None:
    client = SecureChannel(JobSecret(b"x" * 32), client=True)
    server = SecureChannel(SECRET, client=False)
    list(server.feed(client.output()))
    with pytest.raises(SecureChannelError, match="secrets differ"):
        list(client.feed(server.output()))
    with pytest.raises(SecureChannelError, match="secrets differ"):
        list(server.feed(client.output()))


def test_a_server_refuses_a_client_that_proves_nothing() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    attacker = context.wrap_bio(incoming, outgoing)
    server = SecureChannel(SECRET, client=False)
    with pytest.raises(SecureChannelError, match=r"secrets differ|not a valid TLS"):  # noqa: PT012
        list(server.feed(b"GNGL\x02"))
        for _ in range(3):
            try:
                attacker.do_handshake()
                attacker.write(b"stop the job")
            except ssl.SSLWantReadError:
                pass
            list(server.feed(outgoing.read()))
            incoming.write(server.output().removeprefix(b"GNGL\x02"))
    assert not server.is_established


def test_older_tls_is_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    outgoing = ssl.MemoryBIO()
    attacker = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        attacker.do_handshake()
    server = SecureChannel(SECRET, client=False)
    with pytest.raises(SecureChannelError, match="unsupported protocol"):
        list(server.feed(b"GNGL\x02" + outgoing.read()))


def test_both_ends_compute_the_same_certificates() -> None:
    assert tls_end(SECRET, client=True).other_certificate != (
        tls_end(SECRET, client=False).other_certificate
    )
    first = tls_end(SECRET, client=True).other_certificate
    tls_end.cache_clear()
    assert tls_end(SECRET, client=True).other_certificate == first


@pytest.mark.parametrize("which", ["repeated", "second", "reflected", "of another connection"])
def test_only_the_next_frame_of_the_other_end_is_accepted(which: str) -> None:
    client, server = established()
    first, second = (client.encrypt_frame(content) for content in (b"one", b"two"))
    if which == "repeated":
        assert list(server.feed(first)) == [b"one"]
    receiver, frame = {
        "repeated": (server, first),
        "second": (server, second),
        "reflected": (client, first),
        "of another connection": (established()[1], first),
    }[which]
    with pytest.raises(SecureChannelError):
        list(receiver.feed(frame))


def test_a_long_frame_is_refused_from_its_length_alone() -> None:
    client, server = established()
    frame = client.encrypt_frame(bytes(MAX_FIRST_FRAME_BYTES + 1))
    with pytest.raises(SecureChannelError, match="the limit is"):
        list(server.feed(frame[: 2**15]))


@pytest.mark.parametrize("received", [b"HTTP/", b"GNGX\x02", b"\x16\x03\x01\x02\x00"])
def test_another_program_is_refused(received: bytes) -> None:
    with pytest.raises(SecureChannelError, match="does not belong"):
        check_preamble(received)


@pytest.mark.parametrize(("theirs", "reply_bytes"), [(1, 37), (9, 5)])
def test_another_version_is_refused_with_both_numbers(theirs: int, reply_bytes: int) -> None:
    server = SecureChannel(SECRET, client=False)
    with pytest.raises(OtherVersionError, match=f"version {theirs} .* uses 2"):
        list(server.feed(b"GNGL" + bytes([theirs]) + bytes(32)))
    # So the other end can report both numbers, too.
    reply = server.output()
    assert (reply[:5], len(reply)) == (b"GNGL\x02", reply_bytes)


def test_a_client_reports_the_version_of_the_server() -> None:
    client = SecureChannel(SECRET, client=True)
    with pytest.raises(OtherVersionError, match=r"version 3 .* uses 2"):
        list(client.feed(b"GNGL\x03"))


def test_a_secret_is_read_from_the_environment() -> None:
    text = secrets.token_hex(32)
    assert read_job_secret({"GANGLINE_JOB_SECRET": text}, "a") == JobSecret(bytes.fromhex(text))


def test_secret_without_a_variable_is_derived_and_not_private() -> None:
    assert read_job_secret({}, "a") == read_job_secret({}, "a")
    assert read_job_secret({}, "a") != read_job_secret({}, "b")
    assert not read_job_secret({}, "a").is_private


@pytest.mark.parametrize("text", ["no hex", "abcd"])
def test_a_bad_secret_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="GANGLINE_JOB_SECRET"):
        read_job_secret({"GANGLINE_JOB_SECRET": text}, "a")


@settings(max_examples=25)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200))
def test_public_keys_and_signatures_are_those_of_rfc_8032(seed: bytes, message: bytes) -> None:
    ours, theirs = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert ours.public == theirs.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert ours.sign(message) == theirs.sign(message)


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_certificate_is_signed_by_the_key_that_hkdf_derives(role: str) -> None:
    secret = bytes(range(32))
    identity = derive_identity(secret, role)
    info = f"gangline elastic 2 {role}".encode()
    assert identity.seed == HKDF(SHA256(), 32, None, info).derive(secret)
    key = load_pem_private_key(identity.to_pem(), None)
    assert isinstance(key, Ed25519PrivateKey)
    certificate = x509.load_der_x509_certificate(identity.certificate)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)
    assert certificate.subject.rfc4514_string() == "CN=gangline job"
    assert certificate.not_valid_after_utc.year == 9999
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, True)
