"""The operator's webhook, asked by an API server: its configurations, and when it is down."""

import asyncio
from typing import Any

import pytest
import yaml

from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Invalid
from gangline.operator.webhook.component import remove_webhook
from gangline.operator.webhook.configuration import CONFIGURATION_RESOURCES, VALIDATING
from gangline.operator.webhook.settings import FailurePolicy
from integration.operator.webhook import (
    BAD,
    SETTINGS,
    create,
    job,
    until,
    webhook,
)


async def test_configuration_of_another_owner_is_not_changed(
    cluster: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"metadata": {"name": SETTINGS.configuration}, "webhooks": []}
    await cluster.create(VALIDATING, theirs)
    async with webhook(cluster):
        await asyncio.sleep(0)
    assert (await cluster.get(VALIDATING, SETTINGS.configuration)).get("webhooks", []) == []
    assert "--webhook-configuration" in caplog.text


async def test_what_others_change_in_a_configuration_is_put_right(cluster: ApiClient) -> None:
    async with webhook(cluster):
        name = SETTINGS.configuration
        spoilt = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
        chosen = {"matchLabels": {"team": "a"}}
        spoilt.append({"op": "add", "path": "/webhooks/0/objectSelector", "value": chosen})  # type: ignore[dict-item]
        await cluster.patch(VALIDATING, name, spoilt, kind=PatchKind.JSON)

        async def right() -> bool:
            hook = (await cluster.get(VALIDATING, name))["webhooks"][0]
            return bool(hook["clientConfig"].get("caBundle"))

        await until(right, "the authority is named again")
        hook = (await cluster.get(VALIDATING, name))["webhooks"][0]
        assert hook["objectSelector"] == chosen, "what the operator does not set is not its own"


async def test_configurations_are_deleted_with_the_only_replica(cluster: ApiClient) -> None:
    async with webhook(cluster):
        for resource in CONFIGURATION_RESOURCES:
            assert await cluster.get(resource, SETTINGS.configuration)
    for resource in CONFIGURATION_RESOURCES:
        assert not (await cluster.list(resource)).items
    await create(cluster, job())


async def test_failure_policy_ignore_stores_jobs_while_the_webhook_is_down(
    cluster: ApiClient,
) -> None:
    kept: dict[str, Any] = {"remove_at_end": False}
    async with webhook(cluster, failure_policy=FailurePolicy.IGNORE, **kept):
        pass
    await create(cluster, job("ignored"))
    async with webhook(cluster, **kept):
        pass
    with pytest.raises(ApiError, match="failed calling webhook"):
        await create(cluster, job("failed"))
    await remove_webhook(cluster, SETTINGS)
    await create(cluster, job("free"))


async def test_a_second_operator_of_another_name_has_webhooks_of_its_own(
    cluster: ApiClient,
) -> None:
    other = {"configuration": "other", "secret": "other", "namespaces": ("elsewhere",)}
    async with webhook(cluster), webhook(cluster, **other):
        names = {each["metadata"]["name"] for each in (await cluster.list(VALIDATING)).items}
        assert names == {SETTINGS.configuration, "other"}
        with pytest.raises(Invalid):
            await create(cluster, yaml.safe_load(BAD))
        await create(cluster, job())
