"""The Secret through which replicas of the operator share the webhook's certificate.

A write carries the version that was read: of two replicas the later one fails and reads what the
other wrote. Unusable content is logged once, with a remedy, and replaced. A Secret of that name
that another owner created is never changed: a fallback name is used instead.
"""

import logging
from datetime import datetime

import msgspec

from gangline.api.core import Secret
from gangline.api.meta import ObjectMeta
from gangline.api.resources import SECRETS
from gangline.kube.client import Client
from gangline.kube.errors import ConfigError, NotFound
from gangline.operator.webhook import keyring
from gangline.operator.webhook.certificate import UnusableCertificate
from gangline.operator.webhook.complaints import Complaints
from gangline.operator.webhook.configuration import OWNED
from gangline.operator.webhook.keyring import Keyring

log = logging.getLogger(__name__)

OWN = "-own"
"""Suffix of the fallback name."""


class SharedSecret:
    """Reads and writes the Secret."""

    def __init__(self, client: Client, name: str, namespace: str) -> None:
        self._client = client
        self._name, self._namespace = name, namespace
        self._complaints = Complaints(log)

    async def load(self, now: datetime) -> tuple[Secret, Keyring | None]:
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
            found = keyring.read(secret.data)
        except UnusableCertificate as error:
            self._complaints.say(
                where,
                f"{where} cannot be used: {error}. A new certificate is written into it. "
                "Find out which other program writes it; no other action is needed",
            )
            return secret, None
        if now >= found.serving.expires:
            self._complaints.say(
                where,
                f"{where} contains a certificate that expired at {found.serving.expires}. A new "
                "one is served. If an operator was running until then, check the clocks",
            )
        else:
            self._complaints.settle(where)
        return secret, found

    async def store(self, secret: Secret, certificates: Keyring) -> None:
        """Write new content over the loaded Secret.

        Raises:
            Conflict, AlreadyExists: another replica wrote first: load again.
            ApiError: it cannot be written.
        """
        changed = msgspec.structs.replace(secret, data=keyring.write(certificates))
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
        for name in (self._name, self._name + OWN):
            try:
                secret = await self._client.get(SECRETS, name, self._namespace)
            except NotFound:
                labels = dict(OWNED)
                fresh = ObjectMeta(name=name, namespace=self._namespace, labels=labels)
                return Secret(metadata=fresh, type="Opaque")
            if OWNED.items() <= secret.metadata.labels.items():
                return secret
            self._complaints.say(name, self._another(name))
        raise ConfigError(self._another(self._name + OWN))

    def _another(self, name: str) -> str:
        label = ",".join(f"{key}={value}" for key, value in OWNED.items())
        return (
            f"secret {self._namespace}/{name} does not belong to the operator (it has no label "
            f"{label}) and is not changed. Remove it, add that label, or choose another name with "
            "--webhook-secret"
            + (f"; until then {name}{OWN} is used" if not name.endswith(OWN) else "")
        )
