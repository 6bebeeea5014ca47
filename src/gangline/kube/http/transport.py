"""HTTP to an API server: TLS, credentials, time limits, and retries where they are safe.

Plain requests use our own connections, which take a fraction of aiohttp's processor time; streams,
WebSockets and all requests through a proxy use aiohttp (``streams``).

A request is retried if the server says that it did not process it (429, or 503 with Retry-After),
if a read found no connection, and once after a 401 with new credentials. A write whose response was
lost is never repeated here: its effect is unknown, and only the caller can check.

Requests are counted for components only: short commands do not import the metrics library.
"""

import asyncio
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

import msgspec

from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential
from gangline.kube.errors import (
    ApiError,
    ConfigError,
    Unauthorized,
    Unreachable,
    error_from_response,
)
from gangline.kube.http.connections import (
    ConnectionPool,
    NotConnected,
    UntrustedServer,
    UpgradeRefused,
    parse_server_address,
)
from gangline.kube.http.request import PROTOBUF, Request, encode_headers, encode_request
from gangline.kube.rate_limit import TokenBucket
from gangline.kube.write_guard import check_may_write

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientWebSocketResponse

    from gangline.kube.http.streams import AiohttpTransport

NO_RESPONSE = "<error>"
"""The code of a request without a response, as in client-go."""


class RequestCounter(Protocol):
    """Counts the requests to one server."""

    def record_response(self, method: str, code: str, took_s: float) -> None:
        """Count a response by its code (or ``NO_RESPONSE``) and duration."""

    def record_wait(self, method: str, waited_s: float) -> None:
        """Count the time that a request was delayed by the rate limit."""


class NullRequestCounter:
    """Counts nothing."""

    def record_response(self, method: str, code: str, took_s: float) -> None:
        """Do nothing."""

    def record_wait(self, method: str, waited_s: float) -> None:
        """Do nothing."""


def request_counter(host: str, *, counted: bool) -> RequestCounter:
    """Return the counter of the requests to a server."""
    if not counted:
        return NullRequestCounter()
    from gangline.kube.metrics import RequestMetrics

    return RequestMetrics(host)


CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
"""The API server itself aborts a request after 60 s."""
MAX_IN_FLIGHT = 64
"""Maximum number of concurrent requests (without streams): a burst queues here, not in the server.
"""
MAX_ATTEMPTS = 4
MAX_RETRY_AFTER_S = 30.0
"""If the server requests a longer delay than this, its error is passed on."""
CONNECT_BACKOFF_S = 0.1

_DESCRIPTORS = Path("/proc/self/fd")
_KEEP_ALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 60_000),
)


class StreamedBody(NamedTuple):
    """The body of a response, while it arrives."""

    media: str
    """Media type, without parameters."""
    chunks: AsyncIterator[bytes]


class Transport:
    """Sends requests; ``async with`` opens and closes its connections."""

    def __init__(
        self,
        config: ClusterConfig,
        user_agent: str,
        rate_limit: TokenBucket | None = None,
        *,
        count_requests: bool = True,
    ) -> None:
        self.config = config
        self._rate_limit = rate_limit
        self._metrics = request_counter(urlsplit(config.server).netloc, counted=count_requests)
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._open = False
        self._streams: AiohttpTransport | None = None
        self._tls: tuple[Credential, ssl.SSLContext] | None = None
        self._date: tuple[str, float] | None = None
        """Date of the last response, and our clock when it arrived."""
        self._headers = [
            ("User-Agent", user_agent),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity" if config.is_loopback else "gzip"),
            *config.headers,
        ]
        self._base_path = urlsplit(config.server).path.rstrip("/")
        self._connections: ConnectionPool | None = None
        self._head: tuple[str, bytes] | None = None
        """Encoded headers of all plain requests, with the authorization that they contain."""

    async def __aenter__(self) -> Self:
        self._open = True
        server = parse_server_address(self.config.server, self.config.tls_server_name)
        if server is not None and not self.config.proxy_url:
            self._connections = ConnectionPool(server, _keep_alive_socket, CONNECT_TIMEOUT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._streams is not None:
            await self._streams.close()
            self._streams = None
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def send(self, request: Request, *, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            ApiError: the server refused it, or did not respond in time (``Unreachable``).
            ConfigError: no credentials are available.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        refresh = False
        for attempt in range(1, MAX_ATTEMPTS + 1):
            left = max(deadline - asyncio.get_running_loop().time(), 0.001)
            try:
                async with self._slots:
                    return await self._exchange(request, left, refresh)
            except ApiError as error:
                wait = retry_delay(error, request, attempt)
                if wait is None or wait >= left or attempt == MAX_ATTEMPTS:
                    raise
                refresh = error.code == 401
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self, request: Request, *, timeout_s: float | None = None, silence_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield the body of the response in chunks.

        ``timeout_s`` limits the total time, ``silence_s`` the time between two chunks.

        Raises:
            ApiError: as ``send``; ``Unreachable`` also while reading, if the connection breaks.
        """
        async with self.receive(request, timeout_s=timeout_s, silence_s=silence_s) as body:
            yield body.chunks

    @asynccontextmanager
    async def receive(
        self,
        request: Request,
        *,
        accept: str = "",
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> AsyncIterator[StreamedBody]:
        """As ``stream``, with the media type of the body; ``accept`` lists those that are read."""
        try:
            response = await self._open_stream(request, timeout_s, False, silence_s, accept)
        except Unauthorized:
            response = await self._open_stream(request, timeout_s, True, silence_s, accept)
        streams = self._stream_transport  # the client may be closed before the stream is left
        try:
            yield StreamedBody(_media_of(response), self._chunks(response))
        finally:
            streams.abandon(response)

    @asynccontextmanager
    async def websocket(
        self, request: Request, protocols: tuple[str, ...]
    ) -> AsyncIterator["ClientWebSocketResponse"]:
        """Open a WebSocket with one of ``protocols``.

        Raises:
            ApiError: the server refused it, or is unreachable.
        """
        credential = await self.config.credentials.current()
        try:
            with self._translate_errors():
                connection = await self._stream_transport.websocket(
                    request,
                    _accepting("*/*", self._with_authorization(credential)),
                    self._tls_for(credential),
                    protocols,
                )
        except Unreachable as error:
            if isinstance(error.__cause__, UpgradeRefused):
                raise await self._upgrade_error(request, error.__cause__.code) from error
            raise
        try:
            yield connection
        finally:
            await connection.close()

    async def _upgrade_error(self, request: Request, code: int) -> ApiError:
        """Find out why a WebSocket was refused: a plain request returns more than the handshake's
        code.
        """
        try:
            await self.send(request)
        except ApiError as error:
            if error.code == code:
                return error
        return error_from_response(code, b"")

    async def _exchange(self, request: Request, timeout_s: float, refresh: bool) -> bytes:
        if self._connections is None:
            response = await self._open_stream(request, timeout_s, refresh)
            with self._translate_errors():
                return await response.read()
        credential = await self.config.credentials.current(refresh=refresh)
        await self._wait_for_rate_limit(request)
        message = encode_request(request, self._base_path, self._common_headers(credential))
        tls = self._tls_for(credential)
        began, code = time.monotonic(), NO_RESPONSE
        try:
            answer = await self._connections.exchange(
                message, tls, timeout_s, _unguarded if request.is_idempotent else check_may_write
            )
            code = str(answer.code)
            self._note_date(answer.headers.get("date", ""))
            body = answer.decompressed()
        except OSError as error:
            raise Unreachable(self._describe_failure(error)) from error
        finally:
            self._metrics.record_response(request.method, code, time.monotonic() - began)
        if answer.code < 300:
            return body
        raise error_from_response(answer.code, body, answer.headers.get("retry-after"))

    async def _open_stream(
        self,
        request: Request,
        timeout_s: float | None,
        refresh: bool,
        silence_s: float | None = None,
        accept: str = "",
    ) -> "ClientResponse":
        """Send a request and return its response after the head; the body is not read."""
        credential = await self.config.credentials.current(refresh=refresh)
        await self._wait_for_rate_limit(request)
        headers = self._with_authorization(credential)
        if accept:
            headers = _accepting(accept, headers)
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        if not request.is_idempotent:
            check_may_write()
        began, code = time.monotonic(), NO_RESPONSE
        try:
            with self._translate_errors():
                response = await self._stream_transport.open(
                    request, headers, self._tls_for(credential), timeout_s, silence_s
                )
                code = str(response.status)
                self._note_date(response.headers.get("Date", ""))
                if response.status < 300:
                    return response
                body = await response.read()
        finally:
            self._metrics.record_response(request.method, code, time.monotonic() - began)
        if _media_of(response) == PROTOBUF:
            body = _status_as_json(body)
        raise error_from_response(response.status, body, response.headers.get("Retry-After"))

    def _note_date(self, text: str) -> None:
        if text:
            self._date = (text, time.time())

    def clock_skew_s(self) -> float | None:
        """Return our clock minus the server's at the last response, to about a second.

        None if the server has not sent its time.
        """
        if self._date is None:
            return None
        from email.utils import parsedate_to_datetime

        text, received = self._date
        try:
            return received - parsedate_to_datetime(text).timestamp()
        except ValueError:
            return None

    async def _wait_for_rate_limit(self, request: Request) -> None:
        if self._rate_limit is not None:
            began = time.monotonic()
            await self._rate_limit.take()
            self._metrics.record_wait(request.method, time.monotonic() - began)

    async def _chunks(self, response: "ClientResponse") -> AsyncIterator[bytes]:
        with self._translate_errors():
            async for chunk in response.content.iter_any():
                yield chunk

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of streams to ``Unreachable``."""
        try:
            with self._stream_transport.translate_errors():
                yield
        except OSError as error:
            raise Unreachable(self._describe_failure(error)) from error

    @property
    def _stream_transport(self) -> "AiohttpTransport":
        if not self._open:
            raise RuntimeError("the client is not open: use `async with Client(...)`")
        if self._streams is None:
            from gangline.kube.http.streams import AiohttpTransport

            self._streams = AiohttpTransport(
                self.config, _keep_alive_socket, CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
            )
        return self._streams

    def _with_authorization(self, credential: Credential) -> list[tuple[str, str]]:
        if not credential.authorization:
            return list(self._headers)
        return [*self._headers, ("Authorization", credential.authorization)]

    def _common_headers(self, credential: Credential) -> bytes:
        if self._head is None or self._head[0] != credential.authorization:
            host = ("Host", urlsplit(self.config.server).netloc)
            headers = [host, *self._with_authorization(credential)]
            self._head = credential.authorization, encode_headers(headers)
        return self._head[1]

    def _tls_for(self, credential: Credential) -> ssl.SSLContext | None:
        """Return the TLS context for a credential; it is rebuilt only if the certificate has
        changed.
        """
        if self.config.server.startswith("http://"):
            return None
        if self._tls is None or self._tls[0].certificate != credential.certificate:
            self._tls = credential, tls_context(self.config, credential)
        return self._tls[1]

    def _describe_failure(self, error: Exception) -> str:
        server = self.config.server
        match error:
            case UntrustedServer():
                return (
                    f"the certificate of {server} is not trusted: {error}. Check "
                    "certificate-authority and tls-server-name of the cluster in the kubeconfig"
                )
            case NotConnected():
                reason = _os_reason(error.__cause__)
                return f"{server} cannot be reached: {reason}. Is the cluster running?"
            case TimeoutError():
                return f"{server} did not respond in time"
            case _:
                return f"{server} closed the connection: {error or type(error).__name__}"


def _unguarded() -> None:
    """Reads are sent by any replica."""


def _accepting(accept: str, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers with another list of media types.

    A WebSocket accepts any: older API servers refuse a request for a JSON stream (406).
    """
    return [*(pair for pair in headers if pair[0] != "Accept"), ("Accept", accept)]


def _media_of(response: "ClientResponse") -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _status_as_json(body: bytes) -> bytes:
    """Return a Status in protobuf as JSON; the body itself if it is none."""
    from gangline.kube.protobuf.framing import open_envelope, read_status
    from gangline.kube.protobuf.reader import MalformedMessage

    try:
        return msgspec.json.encode(read_status(open_envelope(body)))
    except MalformedMessage:
        return body


def _os_reason(error: BaseException | None) -> str:
    """Return the operating system's message, without what the event loop adds to it."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def retry_delay(error: ApiError, request: Request, attempt: int) -> float | None:
    """Return the delay before the request may be repeated; None: not at all."""
    if error.code == 401:
        return 0.0 if attempt == 1 else None
    # 429 means "too many requests" or "the disruption budget is used up". Only the evictor can
    # wait for the latter, which has no Retry-After or is the response to an eviction.
    if error.code in {429, 503, 504} and error.retry_after_s is not None:
        if request.path.endswith("/eviction") or error.retry_after_s > MAX_RETRY_AFTER_S:
            return None
        return error.retry_after_s * (1 + random.random() / 4)
    if isinstance(error.__cause__, UntrustedServer):
        return None
    if isinstance(error, Unreachable) and request.is_idempotent:
        return CONNECT_BACKOFF_S * (1 << (attempt - 1)) * (0.5 + random.random())
    return None


def client_context(authorities: str | None) -> ssl.SSLContext:
    """Return TLS settings of a client that trusts PEM certificates, by default the system's.

    Python 3.13 turned ``VERIFY_X509_STRICT`` on, which refuses certificates without an authority
    key identifier. Go, and so kubectl and the API server, accept them; many clusters have them.

    Raises:
        SSLError, ValueError: the text contains no certificates.
    """
    context = ssl.create_default_context(cadata=authorities)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def tls_context(config: ClusterConfig, credential: Credential) -> ssl.SSLContext:
    """Build the TLS context: trusted authorities and client certificate.

    Raises:
        ConfigError: a certificate or key is invalid.
    """
    try:
        # The system certificates (100 or more) are slow to load: only if the cluster has none.
        authority = config.certificate_authority
        context = client_context(authority.decode() if authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the certificate-authority is not a PEM certificate: {error}") from error
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate and credential.key:
        _load_client_certificate(context, credential.certificate, credential.key)
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with _private_file(certificate + b"\n" + key) as chain:
        try:
            context.load_cert_chain(chain)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"the client certificate and key are not a pair of PEM files: {error}"
            ) from error


@contextmanager
def _private_file(content: bytes) -> Iterator[Path]:
    """Yield a file that only this user can read: the ssl module reads a key from nothing else.

    It is in memory where the system has such files, so that no key is written to a disk.
    """
    in_memory = getattr(os, "memfd_create", None)
    if in_memory is not None and _DESCRIPTORS.exists():
        with open(in_memory("gangline"), "w+b", buffering=0) as file:
            file.write(content)
            yield _DESCRIPTORS / str(file.fileno())
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gangline-") as folder:
        path = Path(folder, "chain.pem")
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield path


def _keep_alive_socket(
    address: tuple[
        socket.AddressFamily | int, socket.SocketKind | int, int, str, tuple[object, ...]
    ],
) -> socket.socket:
    """Make a socket with TCP keep-alive, which detects a vanished peer on an idle connection."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
