"""Serves reviews over HTTPS: reads a body, calls ``review``, writes the response.

The certificate can be replaced while it serves: open connections keep theirs, new ones get the new
one. Callers of reviews are not authenticated: a response contains nothing but what follows from its
request, from rights that its caller could ask for, and from the replicas that a job allows.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client import Counter, Gauge

from gangline.api.cluster.admission import AdmissionResponse
from gangline.kube.errors import KubeError
from gangline.kube.probes import Address, request_log
from gangline.operator.webhook import review
from gangline.operator.webhook.certificate import ServingCertificate

MAX_BODY_BYTES = 8 << 20
"""Bytes. An API server stores objects of at most 3 MiB, and a review may contain two of them."""
THREADED_BODY_BYTES = 256 << 10
"""Bytes from which a review is processed in a thread, so that it does not delay others."""
READ_TIMEOUT_S = 10.0
STOP_GRACE_S = 5.0

REVIEWS = Counter("gangline_webhook_reviews", "Admission reviews by response", ("path", "answer"))
EXPIRY = Gauge(
    "gangline_webhook_certificate_expiry_timestamp_seconds",
    "Expiry of the served certificate",
)

Responder = Callable[[review.ReviewRequest], AdmissionResponse | Awaitable[AdmissionResponse]]
"""Returns the response to a review; one that calls the API server is asynchronous."""


class WebhookServer:
    def __init__(
        self, responders: dict[str, Responder], routes: Iterable[web.RouteDef] = ()
    ) -> None:
        """Serve reviews, and ``routes`` that authenticate their callers themselves."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([web.post(path, _handler(path, r)) for path, r in responders.items()])
        app.add_routes(routes)
        self._runner = web.AppRunner(
            app, access_log=None, logger=request_log, shutdown_timeout=STOP_GRACE_S
        )
        self._serving = False

    @property
    def is_serving(self) -> bool:
        return self._serving

    @property
    def port(self) -> int:
        return int(self._runner.addresses[0][1])

    async def start(self, address: Address, pair: ServingCertificate) -> None:
        self.set_certificate(pair)
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

    def set_certificate(self, pair: ServingCertificate) -> None:
        # OpenSSL's binding reads keys only from files: this one exists only in memory.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(pair.certificate + pair.key)
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        EXPIRY.set(pair.expires.timestamp())

    async def stop(self) -> None:
        """Finish open requests and stop listening."""
        self._serving = False
        await self._runner.cleanup()


def _handler(path: str, respond: Responder) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            response = await _response(request, respond)
        except web.HTTPException as error:
            REVIEWS.labels(path, str(error.status)).inc()
            raise
        REVIEWS.labels(path, "allowed" if response.allowed else "denied").inc()
        return web.Response(body=review.format_review(response), content_type="application/json")

    return handle


async def _response(request: web.Request, respond: Responder) -> AdmissionResponse:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            body = await request.read()
        if len(body) < THREADED_BODY_BYTES:
            response = respond(review.parse_review(body))
        else:
            response = await asyncio.to_thread(lambda: respond(review.parse_review(body)))
        return response if isinstance(response, AdmissionResponse) else await response
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body did not arrive in time\n") from None
    except review.InvalidReview as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    except KubeError as error:
        # The caller's failure policy decides.
        raise web.HTTPServiceUnavailable(
            text=f"the API server does not answer: {error}\n"
        ) from None
