"""The subset of SPDY/3.1 that Kubernetes clients use: several streams over one connection. No I/O.

A ``SpdySession`` is fed with received bytes and writes through a function. A callback reports new
streams. There is no flow control: these clients neither wait for window updates nor send them.
Header blocks use one compression context for each direction, with the dictionary of the protocol.
"""

import asyncio
import struct
import zlib
from collections.abc import Callable, Mapping

from gangline.local import limits

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 0x01
VERSION = 3
MAX_DATA_BYTES = 1 << 16

_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language "
    "accept-ranges age allow authorization cache-control connection content-base "
    "content-encoding content-language content-length content-location content-md5 "
    "content-range content-type date etag expect expires from host if-match if-modified-since "
    "if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer "
    "transfer-encoding upgrade user-agent vary via warning www-authenticate method get status"
)
_VALUES = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 "
    "Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
    "gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _length_prefixed(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


DICTIONARY = b"".join(map(_length_prefixed, (*_NAMES.split(), *_VALUES))) + _TAIL.encode()


class SpdyError(Exception):
    """The peer violated the protocol."""


class SpdyStream:
    """One stream: received data is queued for reading, sent data is framed."""

    def __init__(self, session: "SpdySession", identity: int, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._session = session
        self._identity = identity
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = False
        self._closed = False

    async def read(self) -> bytes:
        """Return the next received data; empty at the end."""
        if self._ended and self._arrived.empty():
            return b""
        piece = await self._arrived.get()
        self._session.mark_read(len(piece))
        return piece

    def write(self, content: bytes) -> None:
        if self._closed:
            return
        for start in range(0, len(content), MAX_DATA_BYTES):
            self._session.send_data(self._identity, content[start : start + MAX_DATA_BYTES], 0)

    def close(self) -> None:
        """End the stream in both directions: received data is no longer read."""
        if not self._closed:
            self._closed = True
            self._session.send_data(self._identity, b"", FIN)
            self._session.forget(self._identity)
            while not self._arrived.empty():
                self._session.mark_read(len(self._arrived.get_nowait()))
            self._arrived.put_nowait(b"")

    def receive(self, content: bytes, *, last: bool) -> None:
        if content:
            self._arrived.put_nowait(content)
        if last and not self._ended:
            self._ended = True
            self._arrived.put_nowait(b"")


class SpdySession:
    """One connection with its streams."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        opened: Callable[[SpdyStream], None],
        waiting: Callable[[int], None] = lambda size: None,
    ) -> None:
        """``waiting`` is called with the number of unread bytes, so that the owner can pause
        reading.
        """
        self._write = write
        self._opened = opened
        self._waiting = waiting
        self._unread = 0
        self._buffer = bytearray()
        self._streams: dict[int, SpdyStream] = {}
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def feed(self, content: bytes) -> None:
        """Process received bytes. Raises SpdyError: the bytes are not valid SPDY."""
        self._buffer += content
        position = 0
        try:
            while len(self._buffer) - position >= 8:
                first, second = struct.unpack_from(">II", self._buffer, position)
                length = second & 0xFFFFFF
                if length > limits.MAX_SPDY_FRAME_BYTES:
                    raise SpdyError(f"a frame of {length} bytes is too large")
                if len(self._buffer) - position < 8 + length:
                    break
                payload = bytes(self._buffer[position + 8 : position + 8 + length])
                position += 8 + length
                self._frame(first, second >> 24, payload)
        finally:
            # Once for all frames: removing each small one would move all that follow it.
            del self._buffer[:position]

    def _frame(self, first: int, flags: int, payload: bytes) -> None:
        if first & 0x80000000:
            self._control((first >> 16) & 0x7FFF, first & 0xFFFF, flags, payload)
        else:
            self._data(first, flags, payload)

    def end_streams(self) -> None:
        """End all streams, because the connection is closed."""
        for stream in self._streams.values():
            stream.receive(b"", last=True)

    def forget(self, identity: int) -> None:
        """Remove a closed stream; data that still arrives for it is ignored."""
        self._streams.pop(identity, None)

    def mark_read(self, size: int) -> None:
        self._unread -= size
        self._waiting(self._unread)

    def send_data(self, identity: int, content: bytes, flags: int) -> None:
        self._write(struct.pack(">II", identity, flags << 24 | len(content)) + content)

    def _control(self, version: int, type_: int, flags: int, payload: bytes) -> None:
        if version != VERSION:
            raise SpdyError(f"SPDY version {version} is not supported")
        if type_ == SYN_STREAM:
            self._syn_stream(flags, payload)
        elif type_ == RST_STREAM:
            stream = self._streams.pop(_identity(payload), None)
            if stream is not None:
                stream.receive(b"", last=True)
        elif type_ == PING:
            self._send_control(PING, payload)
        # SETTINGS, WINDOW_UPDATE and GOAWAY need no action.

    def _syn_stream(self, flags: int, payload: bytes) -> None:
        if len(payload) < 10:
            raise SpdyError("a SYN_STREAM frame is truncated")
        identity = _identity(payload)
        headers = self._headers(payload[10:])
        if identity in self._streams:
            raise SpdyError(f"stream {identity} is already open")
        if len(self._streams) >= limits.MAX_SPDY_STREAMS:
            raise SpdyError(f"more than {limits.MAX_SPDY_STREAMS} streams are open")
        stream = SpdyStream(self, identity, headers)
        self._streams[identity] = stream
        reply = self._deflate.compress(struct.pack(">I", 0))
        reply += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._send_control(SYN_REPLY, struct.pack(">I", identity) + reply)
        if flags & FIN:
            stream.receive(b"", last=True)
        self._opened(stream)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            raw = self._inflate.decompress(block, limits.MAX_SPDY_HEADER_BYTES)
            if len(raw) >= limits.MAX_SPDY_HEADER_BYTES or self._inflate.unconsumed_tail:
                raise SpdyError(f"headers exceed {limits.MAX_SPDY_HEADER_BYTES} bytes")
            (count,) = struct.unpack_from(">I", raw)
            if count > limits.MAX_SPDY_HEADERS:
                raise SpdyError(f"a stream has {count} headers")
            position = 4
            texts: list[str] = []
            for _ in range(2 * count):
                (size,) = struct.unpack_from(">I", raw, position)
                position += 4
                texts.append(raw[position : position + size].decode())
                position += size
        except (zlib.error, struct.error, UnicodeDecodeError) as error:
            raise SpdyError(f"invalid headers: {error}") from error
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def _data(self, identity: int, flags: int, payload: bytes) -> None:
        stream = self._streams.get(identity)
        if stream is None:
            return
        self._unread += len(payload)
        self._waiting(self._unread)
        stream.receive(payload, last=bool(flags & FIN))

    def _send_control(self, type_: int, payload: bytes) -> None:
        head = struct.pack(">HHI", 0x8000 | VERSION, type_, len(payload))
        self._write(head + payload)


def _identity(payload: bytes) -> int:
    if len(payload) < 4:
        raise SpdyError("a frame is truncated")
    return int.from_bytes(payload[:4]) & 0x7FFFFFFF
