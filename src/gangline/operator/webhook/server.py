"""Serving reviews over HTTPS: reads a body, asks ``review``, writes the answer.

The certificate can be exchanged while it serves: connections that are open keep theirs, new ones
get the new one. Who calls is not asked, because nothing is given away: an answer depends on nothing
but the question.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import Counter, Gauge

from gangline.api.admission import AdmissionResponse
from gangline.kube.probes import Address
from gangline.operator.webhook import review
from gangline.operator.webhook.certificate import Pair

LARGEST_BODY = 8 << 20
"""Bytes. An API server takes objects of 3 MiB at most, and a review may hold two of them."""
LARGE_BODY = 256 << 10
"""Bytes from which on a review is answered in a thread: others are not to wait for it."""
READ_TIMEOUT_S = 10.0
STOP_GRACE_S = 5.0

REVIEWS = Counter(
    "gangline_webhook_reviews", "Admission reviews by how they were answered", ("path", "answer")
)
EXPIRY = Gauge(
    "gangline_webhook_certificate_expiry_timestamp_seconds",
    "When the certificate that is served ends",
)

Respond = Callable[[review.Question], AdmissionResponse]


class Server:
    """Serves some paths, each with a function that answers questions."""

    def __init__(self, responders: dict[str, Respond]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        app = web.Application(client_max_size=LARGEST_BODY)
        app.add_routes([web.post(path, _handler(path, r)) for path, r in responders.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_GRACE_S)
        self._serving = False

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._serving

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._runner.addresses[0][1])

    async def start(self, address: Address, pair: Pair) -> None:
        """Begin to listen.

        Raises:
            OSError: the port is taken, or the address is none of this machine.
        """
        self.show(pair)
        if self._runner.server is None:
            await self._runner.setup()
        host, port = address.host or None, address.port
        site = web.TCPSite(self._runner, host, port, ssl_context=self._context)
        try:
            await site.start()
        except OSError:
            await site.stop()
            raise
        self._serving = True

    def show(self, pair: Pair) -> None:
        """Show this certificate to whoever connects from now on."""
        # OpenSSL's binding reads a key from a file only: one that lives in memory.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(pair.certificate + pair.key)
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        EXPIRY.set(pair.expires.timestamp())

    async def stop(self) -> None:
        """Answer what has been asked, and listen no more."""
        self._serving = False
        await self._runner.cleanup()


def _handler(path: str, respond: Respond) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            response = await _response(request, respond)
        except web.HTTPException as error:
            REVIEWS.labels(path, str(error.status)).inc()
            raise
        REVIEWS.labels(path, "allowed" if response.allowed else "denied").inc()
        return web.Response(body=review.write(response), content_type="application/json")

    return handle


async def _response(request: web.Request, respond: Respond) -> AdmissionResponse:
    """Answer a request.

    Raises:
        web.HTTPException: it is no review.
    """
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            body = await request.read()
        if len(body) < LARGE_BODY:
            return respond(review.read(body))
        return await asyncio.to_thread(lambda: respond(review.read(body)))
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body did not come in time\n") from None
    except review.UnreadableReview as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
