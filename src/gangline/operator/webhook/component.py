"""The webhook as a part of the operator: assembled, run, and removed at the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from gangline.kube.client.client import ApiClient
from gangline.operator.model.framework import Framework
from gangline.operator.webhook import configuration, review
from gangline.operator.webhook.certificate_controller import (
    CertificateController,
    CertificateSecret,
)
from gangline.operator.webhook.configuration import WebhookRegistration
from gangline.operator.webhook.defaults import JobDefaulter
from gangline.operator.webhook.review import JobValidator, QueueAccess
from gangline.operator.webhook.server import Responder, WebhookServer
from gangline.operator.webhook.settings import WebhookSettings

REMOVE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class RunningWebhook:
    controller: CertificateController
    server: WebhookServer


@asynccontextmanager
async def run_webhook(
    client: ApiClient, settings: WebhookSettings | None, frameworks: Sequence[Framework]
) -> AsyncIterator[RunningWebhook | None]:
    """Run the webhook while the context is open; None without settings.

    Does not wait until it is served: the operator's work does not depend on it.
    """
    if settings is None:
        yield None
        return
    access = QueueAccess(client, frameworks) if settings.queue_access else None
    server = _server(frameworks, JobValidator(client), access)
    registration = WebhookRegistration(
        client, settings, [framework.kind for framework in frameworks]
    )
    secret = CertificateSecret(client, settings.secret, settings.namespace)
    keeper = CertificateController(settings, secret, server, registration)
    task = asyncio.create_task(keeper.run(), name="webhook")
    try:
        yield RunningWebhook(keeper, server)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if settings.remove_at_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_TIMEOUT_S):
                    await registration.remove()
        await server.stop()


async def remove_webhook(client: ApiClient, settings: WebhookSettings) -> None:
    """Remove configurations of an earlier run if the webhook is now disabled."""
    await WebhookRegistration(client, settings, []).remove()


def _server(
    frameworks: Sequence[Framework], validator: JobValidator, access: QueueAccess | None
) -> WebhookServer:
    defaulting = JobDefaulter(frameworks)
    responders: dict[str, Responder] = {
        configuration.PATHS[configuration.VALIDATING.kind]: validator.review,
        configuration.PATHS[configuration.MUTATING.kind]: partial(
            review.mutate, defaults_for=defaulting.patch_operations
        ),
    }
    if access is not None:
        responders[configuration.QUEUE_ACCESS_PATH] = access.review
    return WebhookServer(responders)
