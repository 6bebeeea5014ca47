"""HTTP: from a request on the wire to an API request, and back.

One low-level aiohttp handler without router or middleware; the registry resolves paths, and
``Routes`` finds the handler. There are three groups of handlers: non-resource paths (discovery,
OpenAPI, health), requests for objects, and streams, which keep the connection open (watches, logs,
exec). A long response is sent in parts, so that other requests are served between them, and so that
a client that reads slowly needs little memory.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong

from gangline.local import limits
from gangline.local.apiserver.audit import AuditLog, RequestTrace
from gangline.local.apiserver.auth.authentication import Authenticator
from gangline.local.apiserver.auth.builtin_roles import PUBLIC_PATHS
from gangline.local.apiserver.auth.rbac import Authorizer, Impersonator, request_attributes
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.errors import (
    StatusError,
    bad_request,
    internal,
    method_not_allowed,
    status_error,
    too_large,
    unauthorized,
)
from gangline.local.apiserver.core.negotiation import JSON, body_to_json, encode_json, is_json
from gangline.local.apiserver.core.registry import Registry
from gangline.local.apiserver.core.request import (
    ANONYMOUS,
    ApiRequest,
    RequestUser,
    join_parts,
    resolve_request,
    split_target,
    write_part,
)
from gangline.local.apiserver.flowcontrol import LONG_PARSE_BYTES, FlowController
from gangline.local.apiserver.metrics import ApiServerMetrics
from gangline.local.apiserver.verbs.rest import ApiResponse
from gangline.local.apiserver.verbs.write import APPLY_PATCHES
from gangline.local.apiserver.watch import status_to_json
from gangline.local.connections import (
    LINGERING_S,
    DeadlineProtocol,
    DeadlineServer,
    authenticate_connection,
)

GZIP_MIN_BYTES = 128 << 10
PART_BYTES = 128 << 10
"""Size of the parts of a long response. Between two parts, other requests are served."""
_GZIP_WINDOW = 31
"""zlib: the largest window, with the gzip format."""


async def convert_long_body(flow: FlowController, api_request: ApiRequest) -> None:
    """Convert a long body in YAML or protobuf to JSON, in a thread. Raises StatusError: 400 or 415,
    as for reading the body.
    """
    body, media = api_request.body, api_request.content_type
    if len(body) <= LONG_PARSE_BYTES or is_json(media):
        return
    applies = media.partition(";")[0].strip().lower() in APPLY_PATCHES
    if applies and body.lstrip()[:1] == b"{":
        return  # read as JSON
    api_request.body = await flow.compute(api_request.user, body_to_json, body, media)
    if not applies:
        api_request.content_type = JSON


async def send_response(request: web.BaseRequest, answer: ApiResponse) -> web.StreamResponse:
    """Return the HTTP response. A long one has been sent already, in parts.

    It is compressed if the client accepts gzip.
    """
    headers = {"Content-Type": answer.media, "Cache-Control": "no-cache, private"}
    size = len(answer.body) + sum(map(len, answer.parts))
    if size <= GZIP_MIN_BYTES or request.method == "HEAD":
        body = answer.body or b"".join(answer.parts)
        return web.Response(body=body, status=answer.code, headers=headers)
    response = web.StreamResponse(status=answer.code, headers=headers)
    parts: Iterable[bytes | memoryview] = (
        _split_body(answer.body) if answer.body else join_parts(answer.parts, PART_BYTES)
    )
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.headers["Content-Encoding"] = "gzip"
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for compressed in _compress(parts):
            await write_part(request, response, compressed)
        return response
    response.content_length = size
    await response.prepare(request)
    for part in parts:
        await write_part(request, response, part)
        await asyncio.sleep(0)
    return response


def _split_body(body: bytes) -> Iterator[memoryview]:
    view = memoryview(body)
    return (view[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES))


async def _compress(parts: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Compress in a thread: zlib releases the interpreter lock."""
    compressor = zlib.compressobj(level=1, wbits=_GZIP_WINDOW)
    for part in parts:
        if compressed := await asyncio.to_thread(compressor.compress, part):
            yield compressed
    yield compressor.flush()


log = logging.getLogger(__name__)

MAX_WARNING_CHARS, MAX_WARNINGS_CHARS = 1024, 4096
"""Characters of one warning, and of all: webhooks write them too, and clients limit headers."""

NonResourceFunction = Callable[[RequestUser, str, str], Awaitable[ApiResponse]]
RequestFunction = Callable[[ApiRequest], Awaitable[ApiResponse]]
StreamFunction = Callable[[web.BaseRequest, ApiRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Routes:
    """Which handler answers a request for objects: a watch, its subresource, or its kind.

    A subresource without a handler of its own, such as ``status``, belongs to ``objects``, as does
    every kind that is stored.
    """

    watch: StreamFunction
    streams: Mapping[str, StreamFunction]
    """By subresource. The connection stays open and occupies no seat."""
    subresources: Mapping[str, RequestFunction]
    kinds: Mapping[tuple[str, str], RequestFunction]
    """By group and plural: kinds that are computed, or whose creation has an effect elsewhere."""
    objects: RequestFunction

    def stream(self, request: ApiRequest) -> StreamFunction | None:
        """Return the handler of a request that keeps its connection open, None for all others."""
        return self.watch if request.verb == "watch" else self.streams.get(request.subresource)

    def handler(self, request: ApiRequest) -> RequestFunction:
        """Return the handler of a request that ends with its response."""
        if request.subresource:
            return self.subresources.get(request.subresource, self.objects)
        return self.kinds.get((request.kind.group, request.kind.plural), self.objects)


@dataclass(slots=True)
class ApiHandler:
    """The handler of all requests: what each of them passes, and who answers it."""

    registry: Registry
    authenticator: Authenticator
    authorizer: Authorizer
    impersonator: Impersonator
    flow: FlowController
    width: Callable[[ApiRequest], int]
    """The number of seats that a request occupies."""
    review_connection: Callable[[ApiRequest], Awaitable[None]]
    """Raises StatusError: a webhook or a policy denies a stream into a pod."""
    non_resource: NonResourceFunction
    routes: Routes
    metrics: ApiServerMetrics
    audit: AuditLog | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Exceptions become Status objects."""
        started = time.perf_counter()
        headers = request.headers
        trace = RequestTrace(
            request.method, request.raw_path, request.remote or "", headers.get("User-Agent", "")
        )
        try:
            response = await self._respond(request, trace)
            trace.code = response.status
        finally:  # also if the client disconnects, which ends watches and streams
            if self.audit is not None:
                self.audit.record_end(trace)
        if trace.request is not None and trace.request.warnings:
            add_warnings(response, trace.request.warnings)
        self.metrics.observe_request(trace.request, response.status, time.perf_counter() - started)
        return response

    async def _respond(self, request: web.BaseRequest, trace: RequestTrace) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            _check_headers(request)
            path, options = split_target(request.raw_path)
            user = self._user(request, path, trace)
            if is_non_resource_path(path):
                trace.reason = self.authorizer.require(
                    user, AccessAttributes(request.method.lower(), path=path)
                )
                if request.method not in ("GET", "HEAD"):
                    raise method_not_allowed(request.method)
                response = await self._handle_non_resource(request, user, path)
            else:
                api_request = resolve_request(self.registry, request.method, path, options)
                trace.request = api_request
                response = await self._handle_resource(request, api_request, user, trace)
        except StatusError as error:
            trace.failure = error.status
            response = error_response(error)
        except web.HTTPRequestEntityTooLarge:
            response = error_response(too_large(limits.MAX_BODY_BYTES))
        except web.RequestPayloadError as error:
            response = error_response(bad_request(f"the body of the request is invalid: {error}"))
        except ConnectionError:
            raise  # the client disconnected
        except RecursionError:
            response = error_response(bad_request("the request is nested too deeply"))
        except Exception as error:  # one failed request must not stop the server
            log.exception("request failed", extra={"path": request.raw_path})
            response = error_response(internal(f"{type(error).__name__}: {error}"))
        return response

    async def _handle_non_resource(
        self, request: web.BaseRequest, user: RequestUser, path: str
    ) -> web.StreamResponse:
        get, accept = self.non_resource, request.headers.get("Accept", "")
        if path in PUBLIC_PATHS:  # as in Kubernetes, probes of health do not wait for a seat
            return await send_response(request, await get(user, path, accept))
        flow = self.flow
        async with flow.seat(user):
            answer = await get(user, path, accept)
        with flow.response(user, len(answer.body)):
            return await send_response(request, answer)

    async def _handle_resource(
        self,
        request: web.BaseRequest,
        api_request: ApiRequest,
        user: RequestUser,
        trace: RequestTrace,
    ) -> web.StreamResponse:
        headers = request.headers
        api_request.user = user
        api_request.accept = headers.get("Accept", "")
        api_request.user_agent = headers.get("User-Agent", "")
        api_request.content_type = headers.get("Content-Type", "")
        trace.reason = self.authorizer.require(user, request_attributes(api_request))
        flow = self.flow
        exchange = self.routes.stream(api_request)
        if exchange is not None:
            if self.audit is not None:
                self.audit.record_start(trace)
            await self.review_connection(api_request)
            with flow.stream(user):
                return await exchange(request, api_request)
        handler = self.routes.handler(api_request)
        size = min(request.content_length or limits.MAX_BODY_BYTES, limits.MAX_BODY_BYTES)
        with flow.body(user, size if request.body_exists else 0):
            if request.body_exists:
                api_request.body = await _read_body(request)
            async with flow.seat(user, self.width(api_request)):
                if request.body_exists:
                    await convert_long_body(flow, api_request)
                answer = await handler(api_request)
        with flow.response(user, len(answer.body)):
            return await send_response(request, answer)

    def _user(self, request: web.BaseRequest, path: str, trace: RequestTrace) -> RequestUser:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        headers = request.headers
        user = self.authenticator.authenticate(headers.get("Authorization", ""), certificate)
        if user is None or (user is ANONYMOUS and path not in PUBLIC_PATHS):
            raise unauthorized()
        trace.user = user
        if user is not ANONYMOUS and (count := authenticate_connection(request, user.name)):
            self.flow.connection(user, count)
        trace.impersonated = self.impersonator.impersonated(user, headers.items())
        return trace.impersonated or user


async def _read_body(request: web.BaseRequest) -> bytes:
    """Read the body of a request. Raises StatusError: 413 if it is too large, 408 if it takes too
    long.
    """
    if (request.content_length or 0) > limits.MAX_BODY_BYTES:
        raise too_large(limits.MAX_BODY_BYTES)
    try:
        async with asyncio.timeout(limits.BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        text = f"the body of the request did not arrive within {limits.BODY_TIMEOUT_S:g} s"
        error = status_error(408, "Timeout", text)
        error.headers["Connection"] = "close"
        raise error from None


def _check_headers(request: web.BaseRequest) -> None:
    if sum(map(len, request.headers.values())) > limits.MAX_HEADER_BYTES:
        text = f"the headers of the request exceed {limits.MAX_HEADER_BYTES} bytes"
        raise status_error(431, "RequestHeaderFieldsTooLarge", text)


def is_non_resource_path(path: str) -> bool:
    """Return True if the path does not name objects."""
    if path.startswith("/api/"):
        return path.rstrip("/").count("/") < 3
    return not path.startswith("/apis/") or path.rstrip("/").count("/") < 4


def error_response(error: StatusError) -> web.Response:
    headers = {"Content-Type": JSON, **error.headers}
    return web.Response(
        body=encode_json(status_to_json(error.status)), status=error.status.code, headers=headers
    )


def add_warnings(response: web.StreamResponse, warnings: list[str]) -> None:
    """Add warnings to the headers of a response. Warnings above the header limit are dropped."""
    left = MAX_WARNINGS_CHARS
    for warning in dict.fromkeys(warnings):
        text = "".join(letter if letter.isprintable() else " " for letter in warning)
        text = text[: min(left, MAX_WARNING_CHARS)]
        left -= len(text)
        if text:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')


class HttpProtocol(DeadlineProtocol):
    """HTTP, where malformed requests also get a Status object."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request and close its connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already started")
        if isinstance(exc, LineTooLong):
            text = f"the request line and each header must not exceed {limits.MAX_LINE_BYTES} bytes"
            error = status_error(431, "RequestHeaderFieldsTooLarge", text)
        elif isinstance(exc, BadHttpMethod):
            error = method_not_allowed("that of the request")
        elif status < 500:
            error = bad_request(f"the request is malformed: {message or exc}")
        else:
            log.error("request failed", exc_info=exc)
            error = internal("the request could not be handled")
        response = error_response(error)
        response.force_close()
        return response


class ApiHttpServer(DeadlineServer):
    """Creates ``HttpProtocol`` for each connection until shutdown."""

    protocol = HttpProtocol


def make_http_server(api: ApiHandler) -> web.Server:
    """Return the aiohttp server of an API. A handler is cancelled when its client disconnects."""
    loop = asyncio.get_running_loop()

    factory = partial(web.BaseRequest, loop=loop, client_max_size=limits.MAX_BODY_BYTES)
    return ApiHttpServer(
        api.handle, request_factory=factory, handler_cancellation=True, access_log=None,
        keepalive_timeout=limits.IDLE_TIMEOUT_S, lingering_time=LINGERING_S,
        max_line_size=limits.MAX_LINE_BYTES, max_field_size=limits.MAX_LINE_BYTES,
        max_headers=limits.MAX_HEADERS,
        auto_decompress=False,  # as in Kubernetes: bodies of requests are never compressed
    )  # fmt: skip
