"""Streams, WebSockets and requests through a proxy, by aiohttp.

Imported when the first of these is needed: the import of aiohttp takes as much processor time as
everything else in a short command.
"""

import asyncio
import contextlib
import io
import ssl
from collections.abc import Iterator, Sequence

import aiohttp

from gangline.display import error_text
from gangline.kube.config.config import ClusterConfig
from gangline.kube.http.connections import (
    MAX_IDLE_S,
    NotConnected,
    SocketFactory,
    UntrustedServer,
    UpgradeRefused,
)
from gangline.kube.http.request import Request

LARGE_BODY_BYTES = 1 << 20

Headers = Sequence[tuple[str, str]]


class AiohttpTransport:
    """Requests to one server whose responses are streamed; use within ``translate_errors``."""

    def __init__(
        self,
        config: ClusterConfig,
        socket_factory: SocketFactory,
        connect_timeout_s: float,
        handshake_timeout_s: float,
    ) -> None:
        self._config = config
        self._connect_timeout_s = connect_timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, socket_factory=socket_factory, keepalive_timeout=MAX_IDLE_S
            ),
            timeout=aiohttp.ClientTimeout(total=handshake_timeout_s, connect=connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn

    @staticmethod
    def abandon(response: aiohttp.ClientResponse) -> None:
        """Close a response, and its connection if the body has not ended.

        With TLS aiohttp would wait for the server's answer to the end of the connection, in the
        background: the event loop may end before.
        """
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()
        response.close()

    @staticmethod
    @contextlib.contextmanager
    def translate_errors() -> Iterator[None]:
        """Translate aiohttp's errors to those of ``connections``, all of them OSErrors.

        Raises:
            Untrusted, NotConnected: there is no connection.
            Refused: the WebSocket was refused.
            TimeoutError, OSError: no response in time, or the connection broke.
        """
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise UntrustedServer(str(error.certificate_error)) from error
        except aiohttp.ClientConnectorError as error:
            raise NotConnected(str(error)) from error.os_error
        except aiohttp.WSServerHandshakeError as error:
            raise UpgradeRefused(error.status) from error
        except OSError:
            raise  # some of aiohttp's errors are OSErrors already
        except aiohttp.ClientError as error:
            raise ConnectionError(error_text(error)) from error

    async def open(
        self,
        request: Request,
        headers: Headers,
        tls: ssl.SSLContext | None,
        timeout_s: float | None,
        silence_s: float | None,
    ) -> aiohttp.ClientResponse:
        """Send a request and return its response after the head; the body is not read."""
        limits = aiohttp.ClientTimeout(
            total=timeout_s, connect=self._connect_timeout_s, sock_read=silence_s
        )
        return await self._session.request(
            request.method,
            self._config.server + request.path,
            params=list(request.params) or None,
            data=_as_stream(request.body),
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            ssl=tls or True,
            server_hostname=self._config.tls_server_name or None,
            proxy=self._config.proxy_url or None,
        )

    async def websocket(
        self,
        request: Request,
        headers: Headers,
        tls: ssl.SSLContext | None,
        protocols: tuple[str, ...],
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket with one of ``protocols``."""
        return await self._session.ws_connect(
            self._config.server + request.path,
            params=list(request.params),
            headers=headers,
            protocols=protocols,
            ssl=tls or True,
            server_hostname=self._config.tls_server_name or None,
            proxy=self._config.proxy_url or None,
            max_msg_size=0,
        )


def _as_stream(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a large body as a stream: sent in one piece it would block the event loop."""
    return io.BytesIO(body) if body is not None and len(body) > LARGE_BODY_BYTES else body
