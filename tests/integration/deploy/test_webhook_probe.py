"""The check of a webhook after an installation: it is reached, or the reason is named."""

import asyncio
from dataclasses import replace

from gangline.deploy.release import find_webhook_fault
from gangline.kube.client.client import ApiClient
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook.component import run_webhook
from gangline.operator.webhook.configuration import CONFIGURATION_RESOURCES
from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings
from integration.operator.cluster import NAMESPACE, PATIENCE_S, install

SHORT_S = 5.0


async def test_a_webhook_is_reached_or_the_reason_is_named(client: ApiClient) -> None:
    await install(client)
    assert await find_webhook_fault(client, NAMESPACE, SHORT_S) == "the API server cannot reach it"

    settings = replace(
        WebhookSettings.for_embedded_cluster(), failure_policy=FailurePolicy.FAIL, resync_s=0.5
    )
    async with run_webhook(client, settings, all_frameworks(OperatorSettings())) as webhook:
        assert webhook is not None
        async with asyncio.timeout(PATIENCE_S):
            await webhook.controller.registered.wait()
        assert await find_webhook_fault(client, NAMESPACE, PATIENCE_S) == ""
        kept = [await client.get(each, settings.configuration) for each in CONFIGURATION_RESOURCES]

    for resource, configuration in zip(CONFIGURATION_RESOURCES, kept, strict=True):
        del configuration["metadata"]["resourceVersion"], configuration["metadata"]["uid"]
        await client.create(resource, configuration)
    fault = await find_webhook_fault(client, NAMESPACE, SHORT_S)
    assert "failed calling webhook" in fault
