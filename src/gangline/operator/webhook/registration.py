"""Registers the webhook: keeps the two webhook configurations current.

Lasting problems are logged once, and again only after a change (``DeduplicatedWarnings``).
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.api.meta.objects import OwnerReference
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, ConfigError, NotFound
from gangline.operator.model.job import JobKindInfo
from gangline.operator.webhook import configuration
from gangline.operator.webhook.certificate import CertificateAuthority
from gangline.operator.webhook.rotation import CertificateSet
from gangline.operator.webhook.settings import WebhookSettings


class DeduplicatedWarnings:
    """Remembers the last warning about each subject."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[str, str] = {}

    def warn(self, subject: str, text: str) -> None:
        """Log a warning, unless it equals the last one about the subject."""
        if self._logged.get(subject) != text:
            self._logged[subject] = text
            self._log.warning("%s", text)

    def clear(self, subject: str) -> None:
        """Record that a problem is resolved."""
        self._logged.pop(subject, None)


log = logging.getLogger(__name__)

FIELD_MANAGER = "gangline-operator"


class WebhookRegistration:
    """Writes the webhook configurations."""

    def __init__(
        self, client: ApiClient, settings: WebhookSettings, kinds: Sequence[JobKindInfo]
    ) -> None:
        self._client = client
        self._settings = settings
        self._kinds = kinds
        self._complaints = DeduplicatedWarnings(log)

    async def register(
        self, ring: CertificateSet, port: int, now: datetime
    ) -> frozenset[CertificateAuthority]:
        """Update both configurations; return the CAs that both contain.

        Raises:
            Conflict: another writer has just changed one: retry.
            ApiError: one cannot be read or written.
        """
        registered = [
            await self._register_one(resource, ring, port, now)
            for resource in configuration.CONFIGURATION_RESOURCES
        ]
        return frozenset(ring.trusted) if all(registered) else frozenset()

    async def remove(self) -> None:
        """Delete or empty the configurations: the API server must not call a stopped webhook."""
        for resource in configuration.CONFIGURATION_RESOURCES:
            try:
                existing = await self._get(resource)
                if configuration.is_filled(existing):
                    await self._client.patch(
                        resource, self._settings.configuration, {"webhooks": None}
                    )
                elif existing is not None and configuration.is_owned(existing):
                    await self._client.delete(resource, self._settings.configuration)
            except (ApiError, ConfigError) as error:
                log.debug("%s is not deleted: %s", resource.kind, error)

    async def find_owner(self) -> OwnerReference | None:
        """Return the configuration that an installer made, or None: the operator made its own.

        The installer's release removes it; what it owns is removed with it.

        Raises:
            ApiError: it cannot be read.
        """
        existing = await self._get(configuration.VALIDATING)
        if existing is None or not configuration.is_filled(existing):
            return None
        resource, metadata = configuration.VALIDATING, existing["metadata"]
        version = f"{resource.group}/{resource.version}"
        return OwnerReference(version, resource.kind, metadata["name"], metadata["uid"])

    async def _register_one(
        self, resource: Resource[dict[str, Any]], ring: CertificateSet, port: int, now: datetime
    ) -> bool:
        existing = await self._get(resource)
        is_filled = configuration.is_filled(existing)
        if existing is not None and not is_filled and not configuration.is_owned(existing):
            self._complaints.warn(resource.kind, self._not_owned_message(resource.kind))
            return False
        self._complaints.clear(resource.kind)
        bundle = configuration.authorities_for(ring, existing, now, self._settings.validity)
        manifest = configuration.desired_configuration(
            resource, self._settings, self._kinds, bundle, port
        )
        if is_filled:
            del manifest["metadata"]["labels"]
        if not configuration.contains(existing, manifest):
            await self._client.apply(
                resource, _with_version_of(existing, manifest), manager=FIELD_MANAGER, force=True
            )
            log.info("webhook is registered", extra={"kind": resource.kind})
        return True

    async def _get(self, resource: Resource[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, self._settings.configuration)
        except NotFound:
            return None

    def _not_owned_message(self, kind: str) -> str:
        return (
            f"{kind} {self._settings.configuration} does not belong to the operator (it has "
            f"neither the label {configuration.OWNER_LABELS} nor "
            f"{configuration.FILLED_LABELS}) and is not changed: jobs are validated when they "
            "run, not when they are written. Remove it, or choose another name with "
            "--webhook-configuration"
        )


def _with_version_of(
    existing: Mapping[str, Any] | None, manifest: dict[str, Any]
) -> dict[str, Any]:
    """Require the version that was read: another replica may have added a CA meanwhile."""
    if existing is None:
        return manifest
    version = existing["metadata"]["resourceVersion"]
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
