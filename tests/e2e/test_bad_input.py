"""Bad input: every error is reported, nothing is created, other jobs are not affected.

Takes 30 s: each mistake is tried with three programs, and a good job runs beside an absurd one.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.jobs import Manifest, job, replica, template
from e2e.scenario import Scenario, condition
from gangline.api.resources import PODS
from gangline.kube.errors import Invalid, NotFound

FOREVER = "sleep 3600"
USAGE = 2


def submitted(
    scenario: Scenario, folder: Path, *manifests: Manifest
) -> subprocess.CompletedProcess[str]:
    """The output of ``gangline submit -f`` for some manifests."""
    file = folder / "submitted.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return scenario.cluster.run("submit", "-n", scenario.namespace, "-f", str(file), check=False)


def _worker(change: Callable[[Manifest], object]) -> Manifest:
    """A valid job, except for the ``change`` to the container list of its worker."""
    manifest = job("spoilt", replica("true"), replica("true"))
    change(manifest)
    return manifest


def _role(manifest: Manifest) -> Any:
    return manifest["spec"]["pytorchReplicaSpecs"]["Worker"]


def _pod(manifest: Manifest) -> Any:
    return _role(manifest)["template"]["spec"]


ABSURD = 10_000
POD = "spec.pytorchReplicaSpecs.Worker.template.spec"
SPOILT = (
    (
        lambda m: _role(m).update(replicas="two"),
        "spec.pytorchReplicaSpecs.Worker.replicas: 'two' is text, not a whole number",
        True,
    ),
    (lambda m: _pod(m).pop("containers"), f"{POD}.containers", True),
    (
        lambda m: m["metadata"].update(annotations={"a": "x" * (1 << 20)}),
        "metadata.annotations: Too long: may not be more than 262144 bytes",
        True,
    ),
    (lambda m: _role(m).update(replicas=ABSURD), "a job has at most 5000", False),
    (
        lambda m: m["metadata"].update(name="n" * 60),
        "'" + "n" * 60 + "-master-0' has 69 characters, and the name of a service has at most 63",
        False,
    ),
    (
        lambda m: _pod(m)["containers"][0].update(name="main"),
        f"{POD}.containers: ['main'] has no container 'pytorch'",
        False,
    ),
)


async def test_submit_the_api_server_and_the_operator_name_the_mistake(
    scenario: Scenario, tmp_path: Path
) -> None:
    """The API server refuses what its schema can say; the operator reports the rest."""
    for change, message, by_schema in SPOILT:
        manifest = _worker(change)
        done = submitted(scenario, tmp_path, manifest)
        assert done.returncode == USAGE
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        name = manifest["metadata"]["name"]
        if by_schema:
            with pytest.raises(Invalid) as refused:
                await scenario.submit(manifest)
            assert refused.value.status.details is not None
            assert refused.value.status.details.causes
            with pytest.raises(NotFound):
                await scenario.job(name)
            continue
        await scenario.submit(manifest)
        reported = await scenario.job_when(
            name, lambda job: condition(job, "InvalidSpec") == "True", "is told to be invalid"
        )
        assert message in reported.status.conditions[-1].message
        assert not await scenario.pods(name)
        await scenario.delete(name)


# Last: Kubernetes' controllers, which send 20 requests a second, take minutes for what it leaves.
@pytest.mark.last
async def test_an_absurd_job_never_hurts_a_good_one(scenario: Scenario, tmp_path: Path) -> None:
    for number in range(10):
        manifest = _worker(lambda m: _role(m).update(replicas=ABSURD))
        manifest["metadata"]["name"] = f"absurd-{number}"
        await scenario.submit(manifest)
    greedy = job("greedy", replica(FOREVER, cpu="100k"), replica(FOREVER, 200, cpu="100k"))
    await scenario.submit(greedy)
    crashing = job("crashing", replica("exit 1", restart="Always"), replica("exit 1", 3))
    await scenario.submit(crashing)
    await scenario.submit(job("good", replica("true"), replica("true", 2)))
    assert await scenario.outcome("good") == "Succeeded"


async def test_a_command_that_does_not_exist_is_named_by_pod_and_job(scenario: Scenario) -> None:
    wrong = {"restartPolicy": "Never", "replicas": 1, "template": template("true")}
    wrong["template"]["spec"]["containers"][0]["command"] = ["/no/such/program"]
    await scenario.submit(job("lost", wrong))
    assert await scenario.outcome("lost") == "Failed"
    listing = await scenario.client.list(PODS, scenario.namespace)
    ended = listing.items[0].status.container_statuses[0].state.terminated
    assert ended is not None
    assert ended.reason in {"ContainerCannotRun", "StartError"}
    assert "/no/such/program" in ended.message
    shown = scenario.cluster.run("get", "lost", "-n", scenario.namespace)
    assert "/no/such/program" in shown.stdout
