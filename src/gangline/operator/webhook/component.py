"""The webhook as a part of the operator: assembled, run, and removed at the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from gangline.kube.client import Client
from gangline.operator.frameworks.base import Framework
from gangline.operator.webhook import configuration, review
from gangline.operator.webhook.advice import advise
from gangline.operator.webhook.defaults import Defaulting
from gangline.operator.webhook.keeper import Keeper
from gangline.operator.webhook.registration import Registration
from gangline.operator.webhook.server import Server
from gangline.operator.webhook.settings import WebhookSettings
from gangline.operator.webhook.shared_secret import SharedSecret

REMOVE_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """A running webhook."""

    keeper: Keeper
    server: Server


@asynccontextmanager
async def admission(
    client: Client, settings: WebhookSettings | None, frameworks: Sequence[Framework]
) -> AsyncIterator[Webhook | None]:
    """Run the webhook while the context is open; None without settings.

    Does not wait until it is served: the operator's work does not depend on it.
    """
    if settings is None:
        yield None
        return
    server = _server(frameworks)
    registration = Registration(client, settings, [framework.kind for framework in frameworks])
    secret = SharedSecret(client, settings.secret, settings.namespace)
    keeper = Keeper(settings, secret, server, registration)
    task = asyncio.create_task(keeper.run(), name="webhook")
    try:
        yield Webhook(keeper, server)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if settings.removed_at_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_WITHIN_S):
                    await registration.remove()
        await server.stop()


async def withdraw(client: Client, settings: WebhookSettings) -> None:
    """Remove configurations of an earlier run if the webhook is now disabled."""
    await Registration(client, settings, []).remove()


def _server(frameworks: Sequence[Framework]) -> Server:
    defaulting = Defaulting(frameworks)
    return Server(
        {
            configuration.PATHS[configuration.VALIDATING.kind]: partial(
                review.judge, advise=advise
            ),
            configuration.PATHS[configuration.MUTATING.kind]: partial(
                review.complete, defaults=defaulting.operations
            ),
        }
    )
