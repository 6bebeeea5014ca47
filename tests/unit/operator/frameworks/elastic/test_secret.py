"""Which Secret pods of an ElasticJob use, also across an upgrade of the operator."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gangline.api.core import pod as api_pod
from gangline.operator.frameworks.elastic.failures import classify_pod_failure
from gangline.operator.frameworks.elastic.secret import secret_name
from gangline.operator.model.plan import ReconcilePlan, TargetKind
from gangline.operator.model.replicas import ObservedPod, strip_pod
from unit.operator.elastic_jobs import ElasticWorld, manifest, read

USUAL = secret_name(read(manifest({"worker": 1})))
FORMER = "train-edljob-secret"


def variables(secret: str) -> list[dict[str, Any]]:
    return [
        {"name": "DATA", "value": "/data"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "token"}}},
        {
            "name": "GANGLINE_JOB_SECRET",
            "valueFrom": {"secretKeyRef": {"name": secret, "key": "secret"}},
        },
    ]


def seen(pod: ObservedPod, secret: str) -> ObservedPod:
    """A pod that was started with a Secret, as an API server shows it."""
    written = msgspec.to_builtins(pod)
    written["spec"] = {"containers": [{"name": "main", "env": variables(secret)}, {"name": "log"}]}
    return strip_pod(msgspec.json.decode(json.dumps(written).encode(), type=ObservedPod))


def running(secrets: dict[str, str]) -> ElasticWorld:
    """A job whose pods run, each with its Secret."""
    world = ElasticWorld(sum(name.startswith("worker") for name in secrets)).up()
    for short, secret in secrets.items():
        world.pods[world[short].name] = seen(world[short], secret)
    return world


def made_secret(decision: ReconcilePlan) -> str:
    """Name the one Secret that is made."""
    (name,) = (each.name for each in decision.creations if each.target is TargetKind.SECRET)
    return name


def replaced(world: ElasticWorld, *short: str) -> dict[str, str]:
    """Pods are deleted: which Secret the operator makes, and the new pods read."""
    for name in short:
        world.remove_pod(world[name])
    world.carry_out(world.decide())  # losses are recorded before pods are created
    decision = world.decide()
    made, pods = made_secret(decision), {}
    for name, pod in world.made(decision).items():
        env = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
        pods[name] = env["GANGLINE_JOB_SECRET"]["valueFrom"]["secretKeyRef"]["name"]
    assert set(pods.values()) == {made}
    return pods


@pytest.mark.parametrize("secret", [FORMER, USUAL])
@pytest.mark.parametrize("lost", ["worker-0", "master-0"])
def test_a_new_pod_reads_the_secret_that_the_others_have(secret: str, lost: str) -> None:
    world = running(dict.fromkeys(["master-0", "worker-0", "worker-1"], secret))
    assert set(replaced(world, lost).values()) == {secret}


def test_once_all_pods_are_new_the_former_secret_is_forgotten() -> None:
    world = running({"master-0": FORMER, "worker-0": FORMER})
    found = replaced(world, "master-0", "worker-0")
    assert found == {"master-1": USUAL, "worker-1": USUAL}


def test_of_pods_that_differ_the_master_is_right() -> None:
    secrets = {"master-0": USUAL, "worker-0": FORMER, "worker-1": FORMER}
    assert replaced(running(secrets), "worker-1") == {"worker-2": USUAL}
    secrets = {"master-0": FORMER, "worker-0": USUAL, "worker-1": USUAL}
    assert replaced(running(secrets), "worker-1") == {"worker-2": FORMER}


def test_a_secret_that_is_none_of_the_jobs_is_not_followed() -> None:
    world = running({"master-0": "somebodys", "worker-0": "somebodys", "worker-1": "somebodys"})
    assert replaced(world, "worker-0") == {"worker-2": USUAL}


def test_pods_that_have_ended_are_not_asked() -> None:
    world = running({"master-0": FORMER, "worker-0": FORMER, "worker-1": FORMER})
    for short in ("master-0", "worker-0"):
        world.fail(world[short], None)
    world.remove_pod(world["worker-1"])
    world.carry_out(world.decide())
    world.wait(700)
    assert made_secret(world.decide()) == USUAL


def test_of_a_pod_only_variables_from_secrets_are_kept() -> None:
    pod = seen(running({"master-0": USUAL, "worker-0": USUAL})["worker-0"], FORMER)
    assert [[each.name for each in one.env or ()] for one in pod.spec.containers] == [
        ["TOKEN", "GANGLINE_JOB_SECRET"]
    ]
    assert pod.secret_of_variable("GANGLINE_JOB_SECRET") == FORMER
    assert pod.secret_of_variable("DATA") == ""
    assert not classify_pod_failure(pod, "main").counts_as_restart, (
        "its view is still read as a pod's"
    )
    assert msgspec.convert(msgspec.to_builtins(pod), api_pod.Pod).metadata.name == pod.name


def test_containers_without_variables_are_read() -> None:
    written = b'{"spec": {"nodeName": "n", "containers": [{"name": "a", "env": null}, {}]}}'
    pod = strip_pod(msgspec.json.decode(written, type=ObservedPod))
    assert (pod.spec.node_name, pod.spec.containers) == ("n", ())
    assert replace(pod).secret_of_variable("GANGLINE_JOB_SECRET") == ""
