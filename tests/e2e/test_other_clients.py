"""Clients that are not ours do the same on Kubernetes as on the embedded cluster."""

import asyncio
from pathlib import Path

import pytest
import yaml

from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from frameworks.client_matrix import check_client, interpreters

pytestmark = pytest.mark.kubernetes_only("tests/frameworks runs all clients on the embedded one")

RUNTIMES = Path(__file__).parents[2] / "deploy" / "runtimes"
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


@pytest.mark.timeout(400)
async def test_the_trainer_client_of_kubeflow_trains_waits_resumes_and_deletes(
    scenario: Scenario, tmp_path: Path
) -> None:
    """The runtimes are those of the release; that of PyTorch gets an image that the node has."""
    cluster, interpreter = scenario.cluster, interpreters().get("kubeflow")
    assert isinstance(cluster, Kubernetes)
    if interpreter is None:
        pytest.skip("there is no environment of kubeflow: run tools/client_environments.py --map")
    torch = yaml.safe_load((RUNTIMES / "torch-distributed.yaml").read_text())
    (job,) = torch["spec"]["template"]["spec"]["replicatedJobs"]
    pod = cluster.python(Path(__file__))
    del pod["containers"][0]["command"]
    pod["containers"][0]["name"] = "node"
    job["template"]["spec"]["template"]["spec"] = pod
    changed = tmp_path / "torch.yaml"
    changed.write_text(yaml.safe_dump(torch))
    cluster.kubectl("apply", "-f", str(RUNTIMES), "-f", str(changed))
    with cluster.default_scheduler():
        await asyncio.to_thread(
            check_client, "kubeflow", interpreter, cluster.kubeconfig, f"{scenario.namespace}-sdk"
        )
    cluster.kubectl("delete", "-f", str(RUNTIMES))
