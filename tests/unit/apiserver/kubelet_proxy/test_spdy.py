"""SPDY: streams opened by a peer, data in both directions, and invalid input."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local import limits
from gangline.local.apiserver.kubelet_proxy.spdy import (
    DICTIONARY,
    SpdyError,
    SpdySession,
    SpdyStream,
)


class Peer:
    """The client side: writes frames as a client does."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def syn_stream(self, identity: int, headers: dict[str, str], flags: int = 0) -> bytes:
        raw = struct.pack(">I", len(headers))
        for name, value in headers.items():
            for text in (name, value):
                raw += struct.pack(">I", len(text)) + text.encode()
        block = self._deflate.compress(raw) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        payload = struct.pack(">IIBB", identity, 0, 0, 0) + block
        return struct.pack(">HHI", 0x8003, 1, flags << 24 | len(payload)) + payload


def data(identity: int, content: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", identity, flags << 24 | len(content)) + content


def session() -> tuple[SpdySession, list[bytes], list[SpdyStream]]:
    sent: list[bytes] = []
    opened: list[SpdyStream] = []
    return SpdySession(sent.append, opened.append), sent, opened


def test_the_dictionary_is_the_protocols_own():
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


async def test_a_stream_is_opened_answered_and_read_to_its_end():
    spdy, sent, opened = session()
    peer = Peer()
    spdy.feed(peer.syn_stream(1, {"streamtype": "stdin"}))
    spdy.feed(peer.syn_stream(3, {"streamtype": "error", "port": "80"}))
    assert [stream.headers["streamtype"] for stream in opened] == ["stdin", "error"]
    assert [frame[:4] for frame in sent] == [b"\x80\x03\x00\x02"] * 2
    spdy.feed(data(1, b"hello") + data(1, b"", flags=1))
    assert [await opened[0].read(), await opened[0].read(), await opened[0].read()] == [
        b"hello", b"", b""]  # fmt: skip


@given(st.binary(max_size=300), st.integers(1, 7))
def test_frames_may_arrive_in_any_pieces(content: bytes, size: int):
    spdy, _, opened = session()
    complete = Peer().syn_stream(1, {"streamtype": "data"}) + data(1, content)
    for start in range(0, len(complete), size):
        spdy.feed(complete[start : start + size])
    assert len(opened) == 1
    assert opened[0]._arrived.qsize() == bool(content)


def test_long_output_is_cut_into_frames_and_ends_once():
    spdy, sent, opened = session()
    spdy.feed(Peer().syn_stream(5, {}))
    del sent[:]
    opened[0].write(b"x" * 100_000)
    opened[0].close()
    opened[0].close()
    opened[0].write(b"late")
    sizes = [int.from_bytes(frame[5:8]) for frame in sent]
    assert sizes == [65536, 100_000 - 65536, 0]
    assert sent[-1][4] == 1


def test_a_ping_comes_back():
    spdy, sent, _ = session()
    ping = b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x07"
    spdy.feed(ping)
    assert sent == [ping]


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\x80\x02\x00\x01\x00\x00\x00\x00", id="another version"),
        pytest.param(b"\x80\x03\x00\x01\x00\x00\x00\x02\x00\x00", id="a frame cut short"),
        pytest.param(
            b"\x80\x03\x00\x01\x00\x00\x00\x0e" + b"\0" * 14, id="headers that are no zlib"
        ),
    ],
)
def test_what_is_no_spdy_is_an_error(junk: bytes):
    spdy, _, _ = session()
    with pytest.raises(SpdyError):
        spdy.feed(junk)


def test_unread_bytes_are_counted():
    counts: list[int] = []
    spdy = SpdySession(lambda frame: None, lambda stream: None, counts.append)
    spdy.feed(Peer().syn_stream(1, {}) + data(1, b"12345"))
    assert counts == [5]


def test_streams_beyond_the_limit_are_refused_until_one_is_closed() -> None:
    spdy, _, opened = session()
    peer = Peer()
    for number in range(limits.MAX_SPDY_STREAMS):
        spdy.feed(peer.syn_stream(2 * number + 1, {}))
    opened[0].close()
    spdy.feed(peer.syn_stream(9001, {}))
    with pytest.raises(SpdyError, match="streams are open"):
        spdy.feed(peer.syn_stream(9003, {}))


def test_closed_stream_returns_its_unread_bytes_to_the_connection() -> None:
    unread: list[int] = []
    opened: list[SpdyStream] = []
    spdy = SpdySession(lambda _: None, opened.append, unread.append)
    spdy.feed(Peer().syn_stream(1, {}) + data(1, b"abc"))
    assert unread[-1] == 3
    opened[0].close()
    assert unread[-1] == 0
    spdy.feed(data(1, b"late"))
    assert unread[-1] == 0
