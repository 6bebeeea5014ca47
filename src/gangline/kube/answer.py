"""Reads the answer of an HTTP/1.1 server from its bytes, however they are cut. Pure.

The rules of the wire are those of llhttp, the parser of Node.js; here stands what an API server's
client makes of them: one answer for each request, whole or an error, never a guess.
"""

import zlib
from typing import NamedTuple

import httptools

MAX_HEAD_BYTES = 1 << 16
GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls the format of gzip."""


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
    """Takes bytes as they come until they make up an answer. For one answer.

    The methods whose names begin with ``on_`` are called by the parser.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._code = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._answer: Answer | None = None
        self._more = False

    def feed(self, received: bytes) -> Answer | None:
        """Take what was received; the answer once it is whole.

        Raises:
            NoHttp: this is no answer.
        """
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as error:
            raise NoHttp("the server changes to a protocol that was not asked for") from error
        except httptools.HttpParserCallbackError as error:
            raise NoHttp(str(error.__context__ or error)) from error
        except httptools.HttpParserError as error:
            if self._answer is None:
                raise NoHttp(f"the answer is not HTTP: {error}") from error
            self._more = True
        if not self._code:
            self._count_head(received)
        if self._answer is not None:
            # The parser knows us as we know it: the collector would have to find that out, and
            # answers of many megabytes would wait for it.
            self._parser = None
        # Who sends more than was asked for is not to be asked again.
        return self._answer._replace(kept=False) if self._answer and self._more else self._answer

    def end(self) -> Answer | None:
        """The server has closed the connection: the answer, if that is how its body ends."""
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._code or self._answer is not None or framed:
            return None
        return Answer(self._code, self._headers, b"".join(self._body), False)

    def on_message_begin(self) -> None:
        """Begin an answer; a second one is more than was asked for."""
        self._more = self._answer is not None
        if not self._more:
            self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if self._answer is not None:
            return
        self._count_head(name + value)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        """Note that the head is whole, unless it is one of those that only announce another."""
        encoding = self._headers.get("transfer-encoding", "chunked")
        if encoding.lower() != "chunked":
            raise NoHttp(f"the body is sent as {encoding[:80]!r}")
        code = self._parser.get_status_code()
        if self._answer is None and code >= 200:
            self._code = code

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._answer is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Make the answer of what came."""
        if self._code and self._answer is None:
            kept = self._parser.should_keep_alive()
            self._answer = Answer(self._code, self._headers, b"".join(self._body), kept)

    def _count_head(self, part: bytes) -> None:
        self._head_bytes += len(part) + len(": \r\n")
        if self._head_bytes > MAX_HEAD_BYTES:
            raise NoHttp("the head of the answer has no end")
