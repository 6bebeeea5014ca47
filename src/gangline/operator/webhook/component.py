"""The webhook as a part of the operator: assembled, run, and removed at the end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.operator.model.framework import Framework
from gangline.operator.webhook import configuration, review
from gangline.operator.webhook.certificate import CertificateAuthority
from gangline.operator.webhook.certificate_controller import (
    CertificateController,
    CertificateSecret,
)
from gangline.operator.webhook.configuration import WebhookRegistration
from gangline.operator.webhook.defaults import JobDefaulter
from gangline.operator.webhook.progress import (
    AuthorityPublisher,
    publish_endpoints,
    publish_service,
)
from gangline.operator.webhook.progress_endpoint import ProgressEndpoint
from gangline.operator.webhook.review import JobValidator, QueueAccess
from gangline.operator.webhook.server import Responder, WebhookServer
from gangline.operator.webhook.settings import WebhookSettings

log = logging.getLogger(__name__)

REMOVE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class RunningWebhook:
    controller: CertificateController
    server: WebhookServer
    progress_url: str
    """The address to which pods report their progress; empty if they cannot."""
    authorities: AuthorityPublisher


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
    settings = await _with_service(client, settings)
    kinds = [framework.kind for framework in frameworks]
    access = QueueAccess(client, frameworks) if settings.queue_access else None
    authorities = AuthorityPublisher(client, settings.namespaces)
    endpoint = ProgressEndpoint(client, [kind.entry for kind in kinds], settings.namespaces)
    routes = endpoint.routes() if settings.progress_url else ()
    server = _server(frameworks, JobValidator(client), access, routes)
    registration = WebhookRegistration(client, settings, kinds)
    secret = CertificateSecret(client, settings.secret, settings.namespace)

    async def on_serving(trusted: tuple[CertificateAuthority, ...], port: int) -> None:
        authorities.set_authorities(trusted)
        if settings.service_address:
            try:
                await publish_endpoints(client, settings, port)
            except ApiError as error:  # the next pass tries again
                log.warning("pods cannot report their progress: %s", error)

    keeper = CertificateController(settings, secret, server, registration, on_serving=on_serving)
    task = asyncio.create_task(keeper.run(), name="webhook")
    try:
        yield RunningWebhook(keeper, server, settings.progress_url, authorities)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if settings.remove_at_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_TIMEOUT_S):
                    await registration.remove()
        await server.stop()
        await endpoint.close()


async def _with_service(client: ApiClient, settings: WebhookSettings) -> WebhookSettings:
    if not (settings.progress and settings.has_own_service):
        return settings
    try:
        return replace(settings, service_address=await publish_service(client, settings))
    except ApiError as error:
        log.warning("pods cannot report their progress: %s", error)
        return settings


async def remove_webhook(client: ApiClient, settings: WebhookSettings) -> None:
    """Remove configurations of an earlier run if the webhook is now disabled."""
    await WebhookRegistration(client, settings, []).remove()


def _server(
    frameworks: Sequence[Framework],
    validator: JobValidator,
    access: QueueAccess | None,
    routes: Iterable[web.RouteDef],
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
    return WebhookServer(responders, routes)
