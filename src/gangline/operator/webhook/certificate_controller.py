"""Keeps the webhook's Secret, certificate and configurations current.

Runs every minute, and whenever a certificate is due to be rotated. ``rotation`` and
``configuration`` decide what to write. Invariant of the order here: callers trust a CA before a
certificate of that CA is served.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from gangline.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden
from gangline.operator.webhook import rotation
from gangline.operator.webhook.certificate import CertificateAuthority, ServingCertificate
from gangline.operator.webhook.registration import DeduplicatedWarnings, WebhookRegistration
from gangline.operator.webhook.rotation import CertificateSet
from gangline.operator.webhook.secret import CertificateSecret
from gangline.operator.webhook.server import WebhookServer
from gangline.operator.webhook.settings import WebhookSettings

log = logging.getLogger(__name__)

RETRY_S = (1.0, 60.0)
"""The first and the longest delay in seconds after an error."""
CONFLICT_RETRY_S = 0.2
MIN_WAIT_S = 0.05


class CertificateController:
    """Reconciles one webhook. Call ``run`` in a task."""

    def __init__(
        self,
        settings: WebhookSettings,
        secret: CertificateSecret,
        server: WebhookServer,
        registration: WebhookRegistration,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._secret = secret
        self._server = server
        self._registration = registration
        self._clock = clock
        self._serving: ServingCertificate | None = None
        self._registered_authorities: frozenset[CertificateAuthority] = frozenset()
        self._complaints = DeduplicatedWarnings(log)
        self.registered = asyncio.Event()
        """Set once the webhook is registered with the API server."""

    async def run(self) -> None:
        """Reconcile until cancelled. No error here ends the operator."""
        retry_s = RETRY_S[0]
        while True:
            try:
                wait_s = await self.reconcile()
                retry_s = RETRY_S[0]
                self._complaints.clear("look")
            except (Conflict, AlreadyExists):
                wait_s = CONFLICT_RETRY_S * random.random()
            except (ApiError, ConfigError, OSError) as error:
                self._complaints.warn("look", _explain(error, self._settings))
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            except Exception:  # the outermost loop: an error must not end the operator
                log.exception("webhook failed and is retried")
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            await asyncio.sleep(wait_s)

    async def reconcile(self) -> float:
        """Run one pass; return the seconds until the next one.

        Raises:
            Conflict, AlreadyExists: another replica wrote first: retry.
            ApiError, ConfigError: an object could not be read or written.
            OSError: the port is not available.
        """
        now, settings = self._clock(), self._settings
        secret, found = await self._secret.load(now)
        desired = rotation.plan_rotation(
            found,
            self._serving,
            settings.names,
            now,
            settings.validity,
            self._registered_authorities,
        )
        owner = None
        with suppress(ApiError):  # its registration reports what is missing
            owner = await self._registration.find_owner()
        if desired != found or (owner and owner not in secret.metadata.owner_references):
            await self._secret.store(secret, desired, owner)
        if not self._server.is_serving:
            await self._server.start(settings.address, desired.serving)
            self._serving = desired.serving
            log.info("webhook is serving", extra={"port": self._server.port})
        try:
            self._registered_authorities = await self._registration.register(
                desired, self._server.port, now
            )
            self.registered.set()
        finally:
            # All replicas serve the same certificate, even if the registration failed.
            self._set_certificate(desired.serving)
        return self._requeue_delay(desired, now)

    def _set_certificate(self, pair: ServingCertificate) -> None:
        if pair != self._serving:
            self._server.set_certificate(pair)
            self._serving = pair
            log.info(
                "webhook certificate is replaced",
                extra={"served_until": pair.expires.isoformat()},
            )

    def _requeue_delay(self, ring: CertificateSet, now: datetime) -> float:
        usual_s = self._settings.resync_s * (0.9 + 0.2 * random.random())
        if ring.next is None or ring.next.authority not in self._registered_authorities:
            return usual_s
        ripe_s = (ring.promotion_time(self._settings.validity) - now).total_seconds()
        return min(usual_s, max(ripe_s, MIN_WAIT_S))


def _explain(error: Exception, settings: WebhookSettings) -> str:
    match error:
        case Forbidden():
            remedy = "grant what docs/operator.md lists under Webhook, or use --webhook off"
        case OSError():
            remedy = f"choose another address than {settings.address} with --webhook-bind-address"
        case _:
            remedy = "it is retried"
    return f"webhook: {error}; {remedy}. Until then jobs are validated when they run"
