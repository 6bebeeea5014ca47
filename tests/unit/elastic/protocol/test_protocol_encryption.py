"""Frames decrypt only at the intended end, in the order in which they were encrypted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.protocol.encryption import (
    MAX_FIRST_FRAME_BYTES,
    JobSecret,
    SecureChannel,
    SecureChannelError,
    check_handshake,
    derive_channel,
    generate_secret,
    new_handshake,
    read_job_secret,
)

SECRET = JobSecret(b"s" * 32)


def both_ends(
    secret: JobSecret = SECRET, other: JobSecret = SECRET
) -> tuple[SecureChannel, SecureChannel]:
    mine, theirs = new_handshake(), new_handshake()
    return derive_channel(secret, mine, theirs, client=True), derive_channel(
        other, mine, theirs, client=False
    )


@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 97))
def test_contents_arrive_complete_and_in_order_for_any_split_of_the_stream(
    contents: list[bytes], step: int
) -> None:
    client, server = both_ends()
    stream = b"".join(client.encryptor.encrypt_frame(content) for content in contents)
    received = [
        content
        for start in range(0, len(stream), step)
        for content in server.decryptor.feed(stream[start : start + step])
    ]
    assert received == contents


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_bit_is_noticed(content: bytes, data: st.DataObject) -> None:
    client, server = both_ends()
    frame = bytearray(client.encryptor.encrypt_frame(content))
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SecureChannelError):
        list(server.decryptor.feed(bytes(frame)))


def test_another_secret_neither_reads_nor_writes() -> None:
    client, server = both_ends(JobSecret(b"x" * 32))
    with pytest.raises(SecureChannelError, match="secrets differ"):
        list(server.decryptor.feed(client.encryptor.encrypt_frame(b"stop")))


def test_the_frame_does_not_contain_the_plain_content() -> None:
    client, _ = both_ends()
    assert b"stop the job" not in client.encryptor.encrypt_frame(b"stop the job")


def test_a_repeated_frame_is_refused() -> None:
    client, server = both_ends()
    frame = client.encryptor.encrypt_frame(b"add one")
    assert list(server.decryptor.feed(frame)) == [b"add one"]
    with pytest.raises(SecureChannelError):
        list(server.decryptor.feed(frame))


def test_a_frame_of_another_connection_is_refused() -> None:
    client, _ = both_ends()
    _, server = both_ends()
    with pytest.raises(SecureChannelError):
        list(server.decryptor.feed(client.encryptor.encrypt_frame(b"add one")))


def test_a_reflected_frame_is_refused() -> None:
    client, _ = both_ends()
    with pytest.raises(SecureChannelError):
        list(client.decryptor.feed(client.encryptor.encrypt_frame(b"hello")))


def test_an_omitted_frame_is_detected() -> None:
    client, server = both_ends()
    client.encryptor.encrypt_frame(b"first")
    with pytest.raises(SecureChannelError):
        list(server.decryptor.feed(client.encryptor.encrypt_frame(b"second")))


def test_a_long_frame_is_refused_from_its_length_alone() -> None:
    _, server = both_ends()
    with pytest.raises(SecureChannelError, match="the limit is"):
        list(server.decryptor.feed((MAX_FIRST_FRAME_BYTES + 100).to_bytes(4, "big")))


@pytest.mark.parametrize("said", [b"HTTP" + bytes(33), b"GNGL\x09" + bytes(32)])
def test_another_handshake_is_refused(said: bytes) -> None:
    with pytest.raises(SecureChannelError):
        check_handshake(said)


def test_a_secret_is_read_from_the_environment() -> None:
    text = generate_secret()
    assert read_job_secret({"GANGLINE_JOB_SECRET": text}, "a") == JobSecret(bytes.fromhex(text))


def test_secret_without_a_variable_is_derived_and_not_private() -> None:
    assert read_job_secret({}, "a") == read_job_secret({}, "a")
    assert read_job_secret({}, "a") != read_job_secret({}, "b")
    assert not read_job_secret({}, "a").is_private


@pytest.mark.parametrize("text", ["no hex", "abcd"])
def test_a_bad_secret_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="GANGLINE_JOB_SECRET"):
        read_job_secret({"GANGLINE_JOB_SECRET": text}, "a")
