"""Clients that are not ours do the same on Kubernetes as on the embedded cluster."""

import asyncio

import pytest

from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from frameworks.client_matrix import check_client, interpreters

pytestmark = pytest.mark.kubernetes_only("tests/frameworks runs all clients on the embedded one")

CLIENTS = ("pinned", "official-28", "kr8s")
"""The official client now and before 37, which sends ``watch=True``, and one that is not official.

The last two only where their environments exist.
"""


async def test_clients_watch_follow_execute_patch_apply_and_list_pages(scenario: Scenario) -> None:
    cluster, found = scenario.cluster, interpreters()
    assert isinstance(cluster, Kubernetes)
    with cluster.default_scheduler():
        await asyncio.gather(
            *(
                asyncio.to_thread(
                    check_client,
                    name,
                    found[name],
                    cluster.kubeconfig,
                    f"{scenario.namespace}-{name}",
                )
                for name in CLIENTS
                if name in found
            )
        )
