"""Registers the webhook: keeps the two webhook configurations current."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.api.resource import Resource
from gangline.kube.client import Client
from gangline.kube.errors import ApiError, ConfigError, NotFound
from gangline.operator.job import Kind
from gangline.operator.webhook import configuration
from gangline.operator.webhook.certificate import Authority
from gangline.operator.webhook.complaints import Complaints
from gangline.operator.webhook.keyring import Keyring
from gangline.operator.webhook.settings import WebhookSettings

log = logging.getLogger(__name__)

MANAGER = "gangline-operator"


class Registration:
    """Writes the webhook configurations."""

    def __init__(self, client: Client, settings: WebhookSettings, kinds: Sequence[Kind]) -> None:
        self._client = client
        self._settings = settings
        self._kinds = kinds
        self._complaints = Complaints(log)

    async def tell(self, ring: Keyring, port: int, now: datetime) -> frozenset[Authority]:
        """Update both configurations; return the CAs that both contain.

        Raises:
            Conflict: another writer has just changed one: retry.
            ApiError: one cannot be read or written.
        """
        registered = [
            await self._tell(resource, ring, port, now) for resource in configuration.BOTH
        ]
        return frozenset(ring.trusted) if all(registered) else frozenset()

    async def remove(self) -> None:
        """Delete the configurations, so that the API server does not call a stopped webhook."""
        for resource in configuration.BOTH:
            try:
                existing = await self._get(resource)
                if existing is not None and configuration.is_owned(existing):
                    await self._client.delete(resource, self._settings.configuration)
            except (ApiError, ConfigError) as error:
                log.debug("%s is not deleted: %s", resource.kind, error)

    async def _tell(
        self, resource: Resource[dict[str, Any]], ring: Keyring, port: int, now: datetime
    ) -> bool:
        existing = await self._get(resource)
        if existing is not None and not configuration.is_owned(existing):
            self._complaints.say(resource.kind, self._another(resource.kind))
            return False
        self._complaints.settle(resource.kind)
        bundle = configuration.bundle_for(ring, existing, now, self._settings.validity)
        manifest = configuration.wanted(resource, self._settings, self._kinds, bundle, port)
        if not configuration.agrees(existing, manifest):
            await self._client.apply(
                resource, _at_version_of(existing, manifest), manager=MANAGER, force=True
            )
            log.info("webhook is registered", extra={"kind": resource.kind})
        return True

    async def _get(self, resource: Resource[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, self._settings.configuration)
        except NotFound:
            return None

    def _another(self, kind: str) -> str:
        return (
            f"{kind} {self._settings.configuration} does not belong to the operator (it has no "
            f"label {configuration.OWNED}) and is not changed: jobs are validated when they run, "
            "not when they are written. Remove it, or choose another name with "
            "--webhook-configuration"
        )


def _at_version_of(existing: Mapping[str, Any] | None, manifest: dict[str, Any]) -> dict[str, Any]:
    """Require the version that was read: another replica may have added a CA meanwhile."""
    if existing is None:
        return manifest
    version = existing["metadata"]["resourceVersion"]
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
