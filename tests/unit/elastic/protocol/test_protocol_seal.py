"""Frames decrypt only at the intended end, in the order in which they were encrypted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.protocol.seal import (
    LARGEST_FIRST_FRAME,
    Ends,
    SealError,
    Secret,
    check_greeting,
    ends,
    greeting,
    new_secret,
    secret_of,
)

SECRET = Secret(b"s" * 32)


def both_ends(secret: Secret = SECRET, other: Secret = SECRET) -> tuple[Ends, Ends]:
    mine, theirs = greeting(), greeting()
    return ends(secret, mine, theirs, client=True), ends(other, mine, theirs, client=False)


@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 97))
def test_contents_arrive_complete_and_in_order_for_any_split_of_the_stream(
    contents: list[bytes], step: int
) -> None:
    client, server = both_ends()
    stream = b"".join(client.sealer.seal(content) for content in contents)
    received = [
        content
        for start in range(0, len(stream), step)
        for content in server.opener.feed(stream[start : start + step])
    ]
    assert received == contents


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_bit_is_noticed(content: bytes, data: st.DataObject) -> None:
    client, server = both_ends()
    frame = bytearray(client.sealer.seal(content))
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SealError):
        list(server.opener.feed(bytes(frame)))


def test_another_secret_neither_reads_nor_writes() -> None:
    client, server = both_ends(Secret(b"x" * 32))
    with pytest.raises(SealError, match="secrets differ"):
        list(server.opener.feed(client.sealer.seal(b"stop")))


def test_the_frame_does_not_contain_the_plain_content() -> None:
    client, _ = both_ends()
    assert b"stop the job" not in client.sealer.seal(b"stop the job")


def test_a_repeated_frame_is_refused() -> None:
    client, server = both_ends()
    frame = client.sealer.seal(b"add one")
    assert list(server.opener.feed(frame)) == [b"add one"]
    with pytest.raises(SealError):
        list(server.opener.feed(frame))


def test_a_frame_of_another_connection_is_refused() -> None:
    client, _ = both_ends()
    _, server = both_ends()
    with pytest.raises(SealError):
        list(server.opener.feed(client.sealer.seal(b"add one")))


def test_a_reflected_frame_is_refused() -> None:
    client, _ = both_ends()
    with pytest.raises(SealError):
        list(client.opener.feed(client.sealer.seal(b"hello")))


def test_an_omitted_frame_is_detected() -> None:
    client, server = both_ends()
    client.sealer.seal(b"first")
    with pytest.raises(SealError):
        list(server.opener.feed(client.sealer.seal(b"second")))


def test_a_long_frame_is_refused_from_its_length_alone() -> None:
    _, server = both_ends()
    with pytest.raises(SealError, match="the limit is"):
        list(server.opener.feed((LARGEST_FIRST_FRAME + 100).to_bytes(4, "big")))


@pytest.mark.parametrize("said", [b"HTTP" + bytes(33), b"GNGL\x09" + bytes(32)])
def test_another_handshake_is_refused(said: bytes) -> None:
    with pytest.raises(SealError):
        check_greeting(said)


def test_a_secret_is_read_from_the_environment() -> None:
    text = new_secret()
    assert secret_of({"GANGLINE_JOB_SECRET": text}, "a") == Secret(bytes.fromhex(text))


def test_secret_without_a_variable_is_derived_and_not_private() -> None:
    assert secret_of({}, "a") == secret_of({}, "a")
    assert secret_of({}, "a") != secret_of({}, "b")
    assert not secret_of({}, "a").is_private


@pytest.mark.parametrize("text", ["no hex", "abcd"])
def test_a_bad_secret_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="GANGLINE_JOB_SECRET"):
        secret_of({"GANGLINE_JOB_SECRET": text}, "a")
