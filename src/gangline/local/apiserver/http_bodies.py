"""Bodies of requests and responses: limits in time, long bodies in parts.

A long response is sent in parts, so that other requests are served between them, and so that a
client that reads slowly needs little memory.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator

from aiohttp import web

from gangline.local.apiserver.core.negotiation import JSON, body_to_json, is_json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.core.response_stream import write_part
from gangline.local.apiserver.flowcontrol.controller import LONG_PARSE_BYTES, FlowController
from gangline.local.apiserver.verbs.apply import APPLY_PATCHES
from gangline.local.apiserver.verbs.rest import ApiResponse

GZIP_MIN_BYTES = 128 << 10
PART_BYTES = 128 << 10
"""Size of the parts of a long response. Between two parts, other requests are served."""
_GZIP_WINDOW = 31
"""zlib: the largest window, with the gzip format."""


async def convert_long_body(flow: FlowController, api_request: ApiRequest) -> None:
    """Convert a long body in YAML or protobuf to JSON, in the lane of the user.

    Raises:
        StatusError: 400 or 415, as for reading the body.
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
        _split_body(answer.body) if answer.body else _join_parts(answer.parts)
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


def _join_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join short parts to parts of at most ``PART_BYTES``; longer parts are not copied."""
    joined: list[bytes] = []
    size = 0
    for part in parts:
        if joined and size + len(part) > PART_BYTES:
            yield b"".join(joined)
            joined, size = [], 0
        joined.append(part)
        size += len(part)
    if joined:
        yield b"".join(joined)


async def _compress(parts: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Compress in a thread: zlib releases the interpreter lock."""
    compressor = zlib.compressobj(level=1, wbits=_GZIP_WINDOW)
    for part in parts:
        if compressed := await asyncio.to_thread(compressor.compress, part):
            yield compressed
    yield compressor.flush()
