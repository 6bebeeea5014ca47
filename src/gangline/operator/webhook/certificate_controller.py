"""Keeps the webhook's Secret, certificate and configurations current.

Runs every minute, and whenever a certificate is due to be rotated. Invariant of the order here:
callers trust a CA before a certificate of that CA is served.

Replicas of the operator share the Secret. A write carries the version that was read: of two
replicas the later one fails and reads what the other wrote. Unusable content is logged once, with a
remedy, and replaced. A Secret of that name that another owner created is never changed: a fallback
name is used instead.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from gangline.api.core.core import Secret
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.api.resources import SECRETS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, Forbidden, NotFound
from gangline.operator.webhook import certificate
from gangline.operator.webhook.certificate import (
    CertificateAuthority,
    CertificateSet,
    ServingCertificate,
    UnusableCertificate,
)
from gangline.operator.webhook.configuration import (
    OWNER_LABELS,
    DeduplicatedWarnings,
    WebhookRegistration,
)
from gangline.operator.webhook.server import WebhookServer
from gangline.operator.webhook.settings import WebhookSettings

log = logging.getLogger(__name__)

FALLBACK_SUFFIX = "-own"
"""Suffix of the fallback name."""


class CertificateSecret:
    def __init__(self, client: ApiClient, name: str, namespace: str) -> None:
        self._client = client
        self._name, self._namespace = name, namespace
        self._complaints = DeduplicatedWarnings(log)

    async def load(self, now: datetime) -> tuple[Secret, CertificateSet | None]:
        """Read the Secret and parse its content; without a resource version it does not exist yet.

        Raises:
            ApiError: it cannot be read.
            ConfigError: the fallback name is occupied too.
        """
        secret = await self._find()
        if not secret.data:
            return secret, None
        where = f"secret {self._namespace}/{secret.metadata.name}"
        try:
            parsed = certificate.parse_certificate_set(secret.data)
        except UnusableCertificate as error:
            self._complaints.warn(
                where,
                f"{where} cannot be used: {error}. A new certificate is written into it. "
                "Find out which other program writes it; no other action is needed",
            )
            return secret, None
        if now >= parsed.serving.expires:
            self._complaints.warn(
                where,
                f"{where} contains a certificate that expired at {parsed.serving.expires}. A new "
                "one is served. If an operator was running until then, check the clocks",
            )
        else:
            self._complaints.clear(where)
        return secret, parsed

    async def store(
        self, secret: Secret, certificates: CertificateSet, owner: OwnerReference | None = None
    ) -> None:
        """Write new content over the loaded Secret, which ends with its owner.

        Raises:
            Conflict, AlreadyExists: another replica wrote first: load again.
            ApiError: it cannot be written.
        """
        changed = msgspec.structs.replace(
            secret, data=certificate.format_certificate_set(certificates)
        )
        if owner:
            metadata = msgspec.structs.replace(secret.metadata, owner_references=[owner])
            changed = msgspec.structs.replace(changed, metadata=metadata)
        if secret.metadata.resource_version:
            await self._client.update(SECRETS, changed, self._namespace)
        else:
            await self._client.create(SECRETS, changed, self._namespace)
        log.info(
            "webhook certificate is stored",
            extra={
                "secret": f"{self._namespace}/{secret.metadata.name}",
                "served_until": certificates.serving.expires.isoformat(),
                "next_until": certificates.next.expires.isoformat() if certificates.next else "",
            },
        )

    async def _find(self) -> Secret:
        for name in (self._name, self._name + FALLBACK_SUFFIX):
            try:
                secret = await self._client.get(SECRETS, name, self._namespace)
            except NotFound:
                labels = dict(OWNER_LABELS)
                fresh = ObjectMeta(name=name, namespace=self._namespace, labels=labels)
                return Secret(metadata=fresh, type="Opaque")
            if OWNER_LABELS.items() <= secret.metadata.labels.items():
                return secret
            self._complaints.warn(name, self._not_owned_message(name))
        raise ConfigError(self._not_owned_message(self._name + FALLBACK_SUFFIX))

    def _not_owned_message(self, name: str) -> str:
        label = ",".join(f"{key}={value}" for key, value in OWNER_LABELS.items())
        return (
            f"secret {self._namespace}/{name} does not belong to the operator (it has no label "
            f"{label}) and is not changed. Remove it, add that label, or choose another name with "
            "--webhook-secret"
            + (
                f"; until then {name}{FALLBACK_SUFFIX} is used"
                if not name.endswith(FALLBACK_SUFFIX)
                else ""
            )
        )


RETRY_S = (1.0, 60.0)
"""The first and the longest delay in seconds after an error."""
CONFLICT_RETRY_S = 0.2
MIN_WAIT_S = 0.05

ServingListener = Callable[[tuple[CertificateAuthority, ...], int], Awaitable[None]]
"""Receives the CAs that callers must trust, and the served port."""


class CertificateController:
    """Reconciles one webhook. Call ``run`` in a task."""

    def __init__(
        self,
        settings: WebhookSettings,
        secret: CertificateSecret,
        server: WebhookServer,
        registration: WebhookRegistration,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_serving: ServingListener | None = None,
    ) -> None:
        """Call ``on_serving`` in each pass, before a new certificate is served."""
        self._settings = settings
        self._on_serving = on_serving
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
        """Run one pass; return the seconds until the next one."""
        now, settings = self._clock(), self._settings
        secret, stored = await self._secret.load(now)
        desired = certificate.plan_rotation(
            stored,
            self._serving,
            settings.names,
            now,
            settings.validity,
            self._registered_authorities,
        )
        owner = None
        with suppress(ApiError):  # its registration reports what is missing
            owner = await self._registration.find_owner()
        if desired != stored or (owner and owner not in secret.metadata.owner_references):
            await self._secret.store(secret, desired, owner)
        if not self._server.is_serving:
            await self._server.start(settings.address, desired.serving)
            self._serving = desired.serving
            log.info("webhook is serving", extra={"port": self._server.port})
        if self._on_serving is not None:
            await self._on_serving(desired.trusted, self._server.port)
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
