"""Bad input: every error is reported, nothing is created, other jobs are not affected."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.jobs import Manifest, job, replica, template
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.resources import EVENTS, PODS, PYTORCH_JOBS
from gangline.kube.errors import ApiError, Invalid, NotFound

MISTAKES = Path(__file__).parents[1] / "unit" / "api" / "validation" / "samples" / "mistakes.yaml"
FOREVER = "sleep 3600"
USAGE = 2


def submitted(
    scenario: Scenario, folder: Path, *manifests: Manifest
) -> subprocess.CompletedProcess[str]:
    """The output of ``gangline submit -f`` for some manifests."""
    file = folder / "submitted.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return scenario.cluster.run("submit", "-n", scenario.namespace, "-f", str(file), check=False)


async def test_forty_mistakes_in_one_job_are_all_named(scenario: Scenario) -> None:
    done = scenario.cluster.run(
        "submit", "-n", scenario.namespace, "-f", str(MISTAKES), check=False
    )
    assert done.returncode == USAGE
    told = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    assert len(set(told)) >= 40, done.stderr
    assert all(":" in line for line in told), "each begins with the field"
    for field in ("metadata.name", "spec.runPolicy.backoffLimit", "spec.pytorchReplicaSpecs"):
        assert field in done.stderr
    assert not (await scenario.client.list(PYTORCH_JOBS, scenario.namespace)).items


def _worker(change: Callable[[Manifest], object]) -> Manifest:
    """A valid job, except for the ``change`` to the container list of its worker."""
    manifest = job("spoilt", replica("true"), replica("true"))
    change(manifest)
    return manifest


def _role(manifest: Manifest) -> Any:
    return manifest["spec"]["pytorchReplicaSpecs"]["Worker"]


def _pod(manifest: Manifest) -> Any:
    return _role(manifest)["template"]["spec"]


POD = "spec.pytorchReplicaSpecs.Worker.template.spec"
SPOILT = {
    "unknown field": (
        lambda m: m["spec"].update(runpolicy={"suspend": True}),
        "spec.runpolicy: is not a known field; did you mean 'runPolicy'?",
    ),
    "unknown field of a container": (
        lambda m: _pod(m)["containers"][0].update(imagePulPolicy="Always"),
        f"{POD}.containers[0].imagePulPolicy: is not a known field; did you mean",
    ),
    "wrong type": (
        lambda m: _role(m).update(replicas="two"),
        "spec.pytorchReplicaSpecs.Worker.replicas: 'two' is text, not a whole number",
    ),
    "absurd replicas": (
        lambda m: _role(m).update(replicas=10_000),
        "a job has at most 5000",
    ),
    "absurd annotation": (
        lambda m: m["metadata"].update(annotations={"a": "x" * (1 << 20)}),
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
    "name too long": (
        lambda m: m["metadata"].update(name="n" * 60),
        "'" + "n" * 60 + "-master-0' has 69 characters, and the name of a service has at most 63",
    ),
    "no containers": (
        lambda m: _pod(m).pop("containers"),
        f"{POD}.containers",
    ),
    "no container of the trainer": (
        lambda m: _pod(m)["containers"][0].update(name="main"),
        f"{POD}.containers: ['main'] has no container 'pytorch'",
    ),
    "two containers of one name": (
        lambda m: _pod(m)["containers"].append(dict(_pod(m)["containers"][0])),
        f"{POD}.containers[1].name",
    ),
}


@pytest.mark.parametrize(("change", "says"), SPOILT.values(), ids=SPOILT)
async def test_submit_names_the_field_and_what_would_be_right(
    scenario: Scenario, tmp_path: Path, change: Callable[[Manifest], object], says: str
) -> None:
    done = submitted(scenario, tmp_path, _worker(change))
    assert done.returncode == USAGE
    assert says in done.stderr
    assert "Traceback" not in done.stderr


REFUSED = ("wrong type", "no containers", "absurd annotation")


@pytest.mark.parametrize("mistake", REFUSED)
async def test_the_api_server_refuses_what_the_schema_can_say(
    scenario: Scenario, mistake: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await scenario.submit(_worker(SPOILT[mistake][0]))
    assert refused.value.status.details is not None
    assert refused.value.status.details.causes
    with pytest.raises(NotFound):
        await scenario.job("spoilt")


PASSED = ("absurd replicas", "name too long", "no container of the trainer")


@pytest.mark.parametrize("mistake", PASSED)
async def test_the_operator_says_what_the_schema_let_pass(scenario: Scenario, mistake: str) -> None:
    change, says = SPOILT[mistake]
    made = await scenario.submit(_worker(change))
    name = made.metadata.name
    told = await scenario.job_when(
        name, lambda job: condition(job, "InvalidSpec") == "True", "is told to be invalid"
    )
    assert says in told.status.conditions[-1].message
    assert not await scenario.pods(name)


# Last: Kubernetes' controllers, which send 20 requests a second, take minutes for what it leaves.
@pytest.mark.last
async def test_an_absurd_job_never_hurts_a_good_one(scenario: Scenario, tmp_path: Path) -> None:
    for number in range(10):
        manifest = _worker(SPOILT["absurd replicas"][0])
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


@pytest.mark.embedded_only("Kubernetes pulls images, and says ErrImagePull where there is none")
async def test_an_image_without_a_match_runs_here_and_an_event_says_so(
    scenario: Scenario,
) -> None:
    await scenario.submit(job("plain", replica("true")))
    assert await scenario.outcome("plain") == "Succeeded"

    async def told() -> list[str]:
        events = (await scenario.client.list(EVENTS, scenario.namespace)).items
        return [event.message for event in events if "busybox:1" in event.message]

    messages = await eventually(told, "an event names the image")
    assert any("image map" in message for message in messages), messages


async def test_owners_in_a_circle_neither_keep_nor_kill_anything(scenario: Scenario) -> None:
    """Each is the other's owner: both owners exist, so both stay until one is deleted."""
    uids = {}
    path = f"/api/v1/namespaces/{scenario.namespace}/configmaps"
    for name in ("hen", "egg", "bystander"):
        made = await scenario.client.request_json("POST", path, body={"metadata": {"name": name}})
        uids[name] = made["metadata"]["uid"]
    for name, owner in (("hen", "egg"), ("egg", "hen")):
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uids[owner]}
        await scenario.client.request_json(
            "PATCH",
            f"{path}/{name}",
            body={"metadata": {"ownerReferences": [reference]}},
            content_type="application/merge-patch+json",
        )
    await scenario.submit(job("meanwhile", replica("true")))
    assert await scenario.outcome("meanwhile") == "Succeeded"

    async def names() -> set[str]:
        listing = await scenario.client.request_json("GET", path)
        return {item["metadata"]["name"] for item in listing["items"]} & set(uids)

    assert await names() == {"hen", "egg", "bystander"}
    await scenario.client.request_json(
        "DELETE", f"{path}/hen", body={"propagationPolicy": "Foreground"}
    )

    async def only_the_bystander() -> bool:
        return await names() == {"bystander"}

    await eventually(only_the_bystander, "the circle is gone")


async def test_kubectl_apply_names_every_mistake(scenario: Scenario, tmp_path: Path) -> None:
    manifest = _worker(SPOILT["wrong type"][0])
    manifest["spec"]["runPolicy"]["cleanPodPolicy"] = "Sometimes"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(manifest))
    done = await asyncio.to_thread(
        subprocess.run,
        ["kubectl", "--kubeconfig", str(scenario.cluster.kubeconfig), "apply",
         "-n", scenario.namespace, "-f", str(file), "--validate=false"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "replicas" in done.stderr
    assert "cleanPodPolicy" in done.stderr


async def test_a_body_beyond_all_measure_is_refused(scenario: Scenario) -> None:
    manifest = job("huge", replica("true"))
    manifest["metadata"]["annotations"] = {"a": "x" * (5 << 20)}
    with pytest.raises(ApiError) as refused:
        await scenario.submit(manifest)
    assert refused.value.status.code == 413
