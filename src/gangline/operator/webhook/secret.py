"""The Secret through which replicas of the operator share the webhook's certificate.

A write carries the version that was read: of two replicas the later one fails and reads what the
other wrote. Unusable content is logged once, with a remedy, and replaced. A Secret of that name
that another owner created is never changed: a fallback name is used instead.
"""

import logging
from datetime import datetime

import msgspec

from gangline.api.core.core import Secret
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.api.resources import SECRETS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ConfigError, NotFound
from gangline.operator.webhook import rotation
from gangline.operator.webhook.certificate import UnusableCertificate
from gangline.operator.webhook.configuration import OWNER_LABELS
from gangline.operator.webhook.registration import DeduplicatedWarnings
from gangline.operator.webhook.rotation import CertificateSet

log = logging.getLogger(__name__)

FALLBACK_SUFFIX = "-own"
"""Suffix of the fallback name."""


class CertificateSecret:
    """Reads and writes the Secret."""

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
            found = rotation.parse_certificate_set(secret.data)
        except UnusableCertificate as error:
            self._complaints.warn(
                where,
                f"{where} cannot be used: {error}. A new certificate is written into it. "
                "Find out which other program writes it; no other action is needed",
            )
            return secret, None
        if now >= found.serving.expires:
            self._complaints.warn(
                where,
                f"{where} contains a certificate that expired at {found.serving.expires}. A new "
                "one is served. If an operator was running until then, check the clocks",
            )
        else:
            self._complaints.clear(where)
        return secret, found

    async def store(
        self, secret: Secret, certificates: CertificateSet, owner: OwnerReference | None = None
    ) -> None:
        """Write new content over the loaded Secret, which ends with its owner.

        Raises:
            Conflict, AlreadyExists: another replica wrote first: load again.
            ApiError: it cannot be written.
        """
        changed = msgspec.structs.replace(
            secret, data=rotation.format_certificate_set(certificates)
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
