"""Incremental parser of HTTP/1.1 responses.

llhttp (through httptools) does the wire format. This module adds what a client of an API server
needs: exactly one complete response per request, or an error. It does no I/O.
"""

import zlib
from typing import NamedTuple

import httptools

MAX_HEAD_BYTES = 1 << 16
GZIP = 16 + zlib.MAX_WBITS
"""The gzip format, as zlib's ``wbits`` argument."""


class MalformedResponse(ConnectionError):
    """The server sent something that is not a valid HTTP response."""


class HttpResponse(NamedTuple):
    """A complete response."""

    code: int
    headers: dict[str, str]
    """Headers by lower-case name; the last one counts if a header occurs several times."""
    body: bytes
    keep_alive: bool
    """Whether the connection may be used again."""

    def decompressed(self) -> bytes:
        """Return the decompressed body.

        Raises:
            MalformedResponse: it is compressed in another way than by gzip, or is incomplete.
        """
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding == "identity":
            return self.body
        if encoding != "gzip":
            raise MalformedResponse(f"the content encoding {encoding[:80]!r} is not supported")
        try:
            return zlib.decompress(self.body, wbits=GZIP)
        except zlib.error as error:
            raise MalformedResponse(f"the body cannot be decompressed: {error}") from error


class ResponseParser:
    """Parses the bytes of one response as they arrive.

    The parser calls the methods whose names begin with ``on_``.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._code = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._answer: HttpResponse | None = None
        self._more = False

    def feed(self, received: bytes) -> HttpResponse | None:
        """Parse received bytes; return the response once it is complete.

        Raises:
            MalformedResponse: the bytes are not a valid response.
        """
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as error:
            raise MalformedResponse(
                "the server switched to a protocol that was not requested"
            ) from error
        except httptools.HttpParserCallbackError as error:
            raise MalformedResponse(str(error.__context__ or error)) from error
        except httptools.HttpParserError as error:
            if self._answer is None:
                raise MalformedResponse(f"the response is not HTTP: {error}") from error
            self._more = True
        if not self._code:
            self._count_head(received)
        if self._answer is not None:
            # Parser and reader refer to each other. Without this, a response of many megabytes
            # would stay in memory until the next garbage collection.
            del self._parser
        # A connection with unrequested data is out of step, so it is not used again.
        return (
            self._answer._replace(keep_alive=False) if self._answer and self._more else self._answer
        )

    def end(self) -> HttpResponse | None:
        """Handle the end of the connection: return the response if its body ends with the
        connection.
        """
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._code or self._answer is not None or framed:
            return None
        return HttpResponse(self._code, self._headers, b"".join(self._body), False)

    def on_message_begin(self) -> None:
        """Start a response; a second one was not requested."""
        self._more = self._answer is not None
        if not self._more:
            self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        if self._answer is not None:
            return
        self._count_head(name + value)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        """Handle the end of the head. A 1xx response only precedes the real one."""
        encoding = self._headers.get("transfer-encoding", "chunked")
        if encoding.lower() != "chunked":
            raise MalformedResponse(f"the transfer encoding {encoding[:80]!r} is not supported")
        code = self._parser.get_status_code()
        if self._answer is None and code >= 200:
            self._code = code

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        if self._answer is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Build the response."""
        if self._code and self._answer is None:
            kept = self._parser.should_keep_alive()
            self._answer = HttpResponse(self._code, self._headers, b"".join(self._body), kept)

    def _count_head(self, part: bytes) -> None:
        self._head_bytes += len(part) + len(": \r\n")
        if self._head_bytes > MAX_HEAD_BYTES:
            raise MalformedResponse(f"the head of the response exceeds {MAX_HEAD_BYTES} bytes")
