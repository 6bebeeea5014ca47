"""Keeps the webhook's Secret, certificate and configurations current.

Runs every minute, and whenever a certificate is due to be rotated. ``keyring`` and
``configuration`` decide what to write. Invariant of the order here: callers trust a CA before a
certificate of that CA is served.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime

from gangline.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden
from gangline.operator.webhook import keyring
from gangline.operator.webhook.certificate import Authority, Pair
from gangline.operator.webhook.complaints import Complaints
from gangline.operator.webhook.keyring import Keyring
from gangline.operator.webhook.registration import Registration
from gangline.operator.webhook.server import Server
from gangline.operator.webhook.settings import WebhookSettings
from gangline.operator.webhook.shared_secret import SharedSecret

log = logging.getLogger(__name__)

RETRY_S = (1.0, 60.0)
"""The first and the longest delay in seconds after an error."""
COLLISION_S = 0.2
SOON_S = 0.05


class Keeper:
    """Reconciles one webhook. Call ``run`` in a task."""

    def __init__(
        self,
        settings: WebhookSettings,
        secret: SharedSecret,
        server: Server,
        registration: Registration,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._secret = secret
        self._server = server
        self._registration = registration
        self._clock = clock
        self._held: Pair | None = None
        self._known: frozenset[Authority] = frozenset()
        self._complaints = Complaints(log)
        self.registered = asyncio.Event()
        """Set once the webhook is registered with the API server."""

    async def run(self) -> None:
        """Reconcile until cancelled. No error here ends the operator."""
        retry_s = RETRY_S[0]
        while True:
            try:
                wait_s = await self.look()
                retry_s = RETRY_S[0]
                self._complaints.settle("look")
            except (Conflict, AlreadyExists):
                wait_s = COLLISION_S * random.random()
            except (ApiError, ConfigError, OSError) as error:
                self._complaints.say("look", _explained(error, self._settings))
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            except Exception:  # the outermost loop: an error must not end the operator
                log.exception("webhook failed and is retried")
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Run one pass; return the seconds until the next one.

        Raises:
            Conflict, AlreadyExists: another replica wrote first: retry.
            ApiError, ConfigError: an object could not be read or written.
            OSError: the port is not available.
        """
        now, settings = self._clock(), self._settings
        secret, found = await self._secret.load(now)
        desired = keyring.plan(
            found, self._held, settings.names, now, settings.validity, self._known
        )
        if desired != found:
            await self._secret.store(secret, desired)
        if not self._server.is_serving:
            await self._server.start(settings.address, desired.serving)
            self._held = desired.serving
            log.info("webhook is serving", extra={"port": self._server.port})
        try:
            self._known = await self._registration.tell(desired, self._server.port, now)
            self.registered.set()
        finally:
            # All replicas serve the same certificate, even if the registration failed.
            self._show(desired.serving)
        return self._wait_s(desired, now)

    def _show(self, pair: Pair) -> None:
        if pair != self._held:
            self._server.show(pair)
            self._held = pair
            log.info(
                "webhook certificate is replaced",
                extra={"served_until": pair.expires.isoformat()},
            )

    def _wait_s(self, ring: Keyring, now: datetime) -> float:
        usual_s = self._settings.look_every_s * (0.9 + 0.2 * random.random())
        if ring.next is None or ring.next.authority not in self._known:
            return usual_s
        ripe_s = (ring.ripe(self._settings.validity) - now).total_seconds()
        return min(usual_s, max(ripe_s, SOON_S))


def _explained(error: Exception, settings: WebhookSettings) -> str:
    match error:
        case Forbidden():
            remedy = "grant what docs/operator.md lists under Webhook, or use --webhook off"
        case OSError():
            remedy = f"choose another address than {settings.address} with --webhook-bind-address"
        case _:
            remedy = "it is retried"
    return f"webhook: {error}; {remedy}. Until then jobs are validated when they run"
