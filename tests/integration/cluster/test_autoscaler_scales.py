"""The autoscaler on a running cluster: CPU load scales a Deployment up.

Takes 25 s: the load of pods is measured before each change.
"""

import pytest

from gangline.api.cluster.autoscaling import HorizontalPodAutoscaler
from gangline.api.meta.conditions import is_condition_true
from gangline.api.resources import DEPLOYMENTS, EVENTS, HORIZONTAL_POD_AUTOSCALERS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = pytest.mark.slow

WORK = "while :; do for i in 1 2 3 4 5 6 7 8 9; do :; done; sleep 0.02; done"


def deployment(command: str) -> dict[str, object]:
    container = {"name": "c", "image": "none", "command": ["sh", "-c", command],
                 "resources": {"requests": {"cpu": "1m"}}}  # fmt: skip
    labels = {"app": "works"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "works"}, "spec": spec}


def scaler(metric: dict[str, object]) -> dict[str, object]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "works"}
    spec = {"scaleTargetRef": target, "maxReplicas": 3, "metrics": [metric]}
    return {"metadata": {"name": "works"}, "spec": spec}


async def the_scaler(client: ApiClient) -> HorizontalPodAutoscaler:
    return await client.get(HORIZONTAL_POD_AUTOSCALERS, "works", "default")


async def test_work_above_the_target_brings_more_replicas(shared_cluster: EmbeddedCluster):
    async with shared_cluster.client() as client:
        await client.create(DEPLOYMENTS, deployment(WORK), "default")
        target = {"type": "Utilization", "averageUtilization": 50}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
        await client.create(HORIZONTAL_POD_AUTOSCALERS, scaler(metric), "default")

        async def has_grown() -> bool:
            found = await client.get(DEPLOYMENTS, "works", "default")
            return found.spec.replicas == 3

        await until(has_grown, within_s=60)

        async def says_so() -> bool:
            found = await the_scaler(client)
            return is_condition_true(found.status.conditions, "ScalingActive")

        await until(says_so, within_s=30)

        async def is_told() -> bool:
            events = await client.list(EVENTS, "default", fields="involvedObject.name=works")
            return "SuccessfulRescale" in {event.reason for event in events.items}

        await until(is_told, within_s=30)
