"""Reads the answer of an HTTP/1.1 server from its bytes, however they are cut. Pure.

It understands what API servers and the proxies in front of them send to a plain request: a body of
stated length, in chunks, or up to the end of the connection. Anything else is an error, never a
guess.
"""

import re
import zlib
from typing import NamedTuple

MAX_HEAD_BYTES = 1 << 16
MAX_CHUNK_LINE_BYTES = 1 << 12
GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls the format of gzip."""
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: .*)?")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,18}")


class NoHttp(ConnectionError):
    """What the server sent is no answer that can be read."""


class Answer(NamedTuple):
    """An answer as a whole."""

    code: int
    headers: dict[str, str]
    """By name in lower case; of a header that came several times, the last."""
    body: bytes
    kept: bool
    """Whether the connection may be used again."""

    def unpacked(self) -> bytes:
        """The body without its compression.

        Raises:
            NoHttp: it is compressed otherwise than by gzip, or not as a whole.
        """
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding == "identity":
            return self.body
        if encoding != "gzip":
            raise NoHttp(f"the body is packed by {encoding[:80]!r}")
        try:
            return zlib.decompress(self.body, wbits=GZIP)
        except zlib.error as error:
            raise NoHttp(f"the body cannot be unpacked: {error}") from error


class AnswerReader:
    """Takes bytes as they come until they make up an answer. For one answer."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._code = 0
        self._headers: dict[str, str] = {}
        self._kept = True
        self._length: int | None = None
        """Of the body; None: in chunks, or until the end."""
        self._body: bytearray | None = None
        """What has come in chunks so far; None: not in chunks."""

    def feed(self, received: bytes) -> Answer | None:
        """Take what was received; the answer once it is whole.

        Raises:
            NoHttp: this is no answer.
        """
        self._buffer += received
        while not self._code:
            if not self._read_head():
                return None
        if self._body is not None:
            return self._answer(self._body) if self._read_chunks(self._body) else None
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = self._buffer[: self._length]
        del self._buffer[: self._length]
        return self._answer(body)

    def end(self) -> Answer | None:
        """The server has closed the connection: the answer, if that is how its body ends."""
        if not self._code or self._body is not None or self._length is not None:
            return None
        body, self._buffer = self._buffer, bytearray()
        return self._answer(body)

    def _answer(self, body: bytearray) -> Answer:
        # Who sends more than was asked for is not to be asked again.
        return Answer(self._code, self._headers, bytes(body), self._kept and not self._buffer)

    def _read_head(self) -> bool:
        """Read a head if it is there as a whole."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_HEAD_BYTES:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise NoHttp("the head of the answer has no end")
            return False
        status_line, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        found = _STATUS_LINE.fullmatch(status_line)
        if found is None:
            raise NoHttp(f"the answer begins with {status_line[:80]!r}")
        self._headers = _headers(lines)
        code = int(found[2])
        if code >= 200:
            self._code = code
            self._read_framing(found[1] == "1")
        elif code == 101:
            raise NoHttp("the server changes to a protocol that was not asked for")
        return True

    def _read_framing(self, keeps: bool) -> None:
        """Note where the body ends, and whether the connection lives on."""
        encoding, length = (
            self._headers.get("transfer-encoding"),
            self._headers.get("content-length"),
        )
        self._kept = keeps and "close" not in self._headers.get("connection", "").lower()
        if self._code in (204, 304):
            self._length = 0
        elif encoding is not None:
            if encoding.lower() != "chunked" or length is not None:
                raise NoHttp(f"the body is sent as {encoding[:80]!r}, of length {length}")
            self._body = bytearray()
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise NoHttp(f"the body has the length {length[:80]!r}")
            self._length = int(length)
        else:
            self._kept = False

    def _read_chunks(self, body: bytearray) -> bool:
        """Move what has come of the body into it; True: that was all."""
        buffer, at = self._buffer, 0
        while (line_end := buffer.find(b"\r\n", at)) >= 0:
            found = _CHUNK_SIZE.fullmatch(buffer, at, line_end)
            if found is None:
                raise NoHttp(f"a chunk begins with {bytes(buffer[at : at + 80])!r}")
            start, size = line_end + 2, int(found[1], 16)
            del found  # it would keep the buffer from shrinking
            if not size:
                if self._read_trailer(start):
                    return True
                break
            if len(buffer) < start + size + 2:
                break
            if buffer[start + size : start + size + 2] != b"\r\n":
                raise NoHttp("a chunk is longer than it says")
            body += memoryview(buffer)[start : start + size]
            at = start + size + 2
        if line_end < 0 and len(buffer) - at > MAX_CHUNK_LINE_BYTES:
            raise NoHttp("the size of a chunk has no end")
        del buffer[:at]
        return False

    def _read_trailer(self, start: int) -> bool:
        """Skip what follows the last chunk, up to an empty line."""
        buffer = self._buffer
        if buffer[start : start + 2] == b"\r\n":
            del buffer[: start + 2]
            return True
        end = buffer.find(b"\r\n\r\n", start)
        if end >= 0:
            del buffer[: end + 4]
            return True
        if len(buffer) - start > MAX_HEAD_BYTES:
            raise NoHttp("what follows the body has no end")
        return False


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name[0] in " \t" or name[-1] in " \t":
            raise NoHttp(f"a header is {line[:80]!r}")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length" and headers.get(name, value) != value:
            raise NoHttp("the body has two lengths")
        headers[name] = value
    return headers
