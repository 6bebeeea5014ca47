"""Match conditions of webhooks: expressions in CEL on the request and the object."""

import pytest

from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from integration.apiserver.test_server_webhooks import configure, create, hooks
from integration.apiserver.webhook_server import WebhookServer, deny

__all__ = ["hooks"]


async def test_conditions_decide_whether_a_webhook_is_called(
    client: ApiClient, hooks: WebhookServer
):
    hooks.answers["no"] = lambda request: deny(request, message="no")
    conditions = [
        {"name": "named", "expression": "object.metadata.name.startsWith('x')"},
        {"name": "created", "expression": "request.operation == 'CREATE' && oldObject == null"},
        {"name": "by-admin", "expression": "'system:masters' in request.userInfo.groups"},
    ]
    await configure(client, "validating", hooks.hook("no", matchConditions=conditions))
    await create(client, "a")
    with pytest.raises(errors.ApiError, match="denied the request: no"):
        await create(client, "x")
    broken = [{"name": "odd", "expression": "object.absent == 1"}]
    await configure(client, "validating", hooks.hook("no", matchConditions=broken), name="d")
    with pytest.raises(errors.Forbidden, match='match condition "odd"'):
        await create(client, "b")
