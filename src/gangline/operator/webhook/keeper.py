"""Keeping the webhook's Secret, certificate and configurations as they should be.

Looks at them every minute, and at the moments at which a certificate is to be exchanged. What is to
be done is said by ``keyring`` and ``configuration``; here it is carried out, in an order in which
callers are told of an authority before anything is served under it.
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
"""The first and the longest wait after something went wrong."""
COLLISION_S = 0.2
SOON_S = 0.05


class Keeper:
    """Looks after one webhook. ``run`` it in a task."""

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
        """Set once the API server has been told of the webhook."""

    async def run(self) -> None:
        """Look until cancelled. Nothing that goes wrong here ends the operator."""
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
            except Exception:  # the outermost loop of the webhook
                log.exception("webhook broke and is looked at again")
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_S[1])
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Do what is to be done now; return the seconds until the next look.

        Raises:
            Conflict, AlreadyExists: another copy was faster: look again.
            ApiError, ConfigError: something could not be read or written.
            OSError: the port cannot be had.
        """
        now, settings = self._clock(), self._settings
        secret, found = await self._secret.load(now)
        wanted = keyring.plan(
            found, self._held, settings.names, now, settings.validity, self._known
        )
        if wanted != found:
            await self._secret.store(secret, wanted)
        if not self._server.is_serving:
            await self._server.start(settings.address, wanted.serving)
            self._held = wanted.serving
            log.info("webhook is served", extra={"port": self._server.port})
        try:
            self._known = await self._registration.tell(wanted, self._server.port, now)
            self.registered.set()
        finally:
            # Whether or not callers could be told, all copies serve the same.
            self._show(wanted.serving)
        return self._wait_s(wanted, now)

    def _show(self, pair: Pair) -> None:
        if pair != self._held:
            self._server.show(pair)
            self._held = pair
            log.info(
                "certificate of the webhook is exchanged",
                extra={"served_until": pair.expires.isoformat()},
            )

    def _wait_s(self, ring: Keyring, now: datetime) -> float:
        usual_s = self._settings.look_every_s * (0.9 + 0.2 * random.random())
        if ring.next is None or ring.next.authority not in self._known:
            return usual_s
        ripe_s = (ring.ripe(self._settings.validity) - now).total_seconds()
        return min(usual_s, max(ripe_s, SOON_S))


def _explained(error: Exception, settings: WebhookSettings) -> str:
    """Say what keeps the webhook from working, and what would help."""
    match error:
        case Forbidden():
            remedy = "grant what docs/operator.md lists under Webhook, or use --webhook off"
        case OSError():
            remedy = f"choose another address than {settings.address} with --webhook-bind-address"
        case _:
            remedy = "it is tried again"
    return f"webhook: {error}; {remedy}. Until then jobs are checked when they run"
