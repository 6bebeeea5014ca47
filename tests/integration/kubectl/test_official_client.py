"""The official Python client against a complete cluster: watch, logs, exec, port-forward."""

import gc
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes import client, config, stream, watch

from integration.cluster.embedded import EmbeddedCluster
from integration.kubectl.manifests import CONFIG, JOB, TALKER, WEB, pod
from integration.kubectl.tool import until

# The client leaks connections that the server closed, and those of refused streams.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SPACE = "official"
GROUP = ("kubeflow.org", "v1", SPACE, "pytorchjobs")


@pytest.fixture(autouse=True)
def forgotten_connections() -> Iterator[None]:
    """Collect leaked connections here, so that their warnings fail no other test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def api(cluster: EmbeddedCluster) -> Iterator[client.CoreV1Api]:
    """The core API with a namespace that contains a printing and a serving pod."""
    with config.new_client_from_config(str(cluster.home.default_kubeconfig)) as connected:
        core = client.CoreV1Api(connected)
        core.create_namespace({"metadata": {"name": SPACE}})
        until(lambda: core.list_namespaced_service_account(SPACE).items)
        core.create_namespaced_pod(SPACE, yaml.safe_load(TALKER))
        deployment, service = yaml.safe_load_all(WEB)
        client.AppsV1Api(connected).create_namespaced_deployment(SPACE, deployment)
        core.create_namespaced_service(SPACE, service)
        until(lambda: all(map(_ready, core.list_namespaced_pod(SPACE).items)))
        yield core


def _ready(found: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in found.status.conditions or [])


def test_watch_sees_a_life_and_can_be_taken_up_again(api: client.CoreV1Api) -> None:
    listed = api.list_namespaced_pod(SPACE, label_selector="app=mayfly")
    since = listed.metadata.resource_version
    api.create_namespaced_pod(SPACE, yaml.safe_load(pod("mayfly", "true", restartPolicy="Never")))
    seen: list[tuple[str, str]] = []
    watching = watch.Watch()
    for event in watching.stream(
        api.list_namespaced_pod,
        SPACE,
        label_selector="app=mayfly",
        resource_version=since,
        timeout_seconds=30,
    ):
        found = event["object"]
        seen.append((event["type"], found.status.phase))
        if found.status.phase == "Succeeded" and event["type"] == "MODIFIED":
            since = found.metadata.resource_version
            break
    assert seen[0] == ("ADDED", "Pending")
    api.delete_namespaced_pod("mayfly", SPACE)
    types = []
    for event in watching.stream(
        api.list_namespaced_pod,
        SPACE,
        label_selector="app=mayfly",
        resource_version=since,
        timeout_seconds=30,
    ):
        types.append(event["type"])
        if event["type"] == "DELETED":
            break
    assert types[-1] == "DELETED"
    assert "ADDED" not in types


def test_watch_from_dropped_revision_gets_410(api: client.CoreV1Api) -> None:
    with pytest.raises(client.ApiException) as refused:
        for _ in watch.Watch().stream(
            api.list_namespaced_pod, SPACE, resource_version="999999999", timeout_seconds=5
        ):
            pass
    assert refused.value.status in (410, 504)


def test_objects_live(api: client.CoreV1Api) -> None:
    api.create_namespaced_config_map(SPACE, yaml.safe_load(CONFIG % ("official", "red")))
    body = {"data": {"colour": "blue"}}
    assert api.patch_namespaced_config_map("official", SPACE, body).data == body["data"]
    found = api.read_namespaced_config_map("official", SPACE)
    found.data["colour"] = "green"
    api.replace_namespaced_config_map("official", SPACE, found)
    with pytest.raises(client.ApiException) as refused:  # It was read before the last change.
        api.replace_namespaced_config_map("official", SPACE, found)
    assert refused.value.status == 409
    assert json.loads(refused.value.body)["reason"] == "Conflict"
    api.delete_namespaced_config_map("official", SPACE)
    with pytest.raises(client.ApiException) as refused:
        api.read_namespaced_config_map("official", SPACE)
    assert refused.value.status == 404


def test_a_job_as_custom_object(api: client.CoreV1Api) -> None:
    jobs = client.CustomObjectsApi(api.api_client)
    jobs.create_namespaced_custom_object(*GROUP, body=yaml.safe_load(JOB))

    def conditions() -> list[str]:
        found = jobs.get_namespaced_custom_object_status(*GROUP, "train")
        return [each["type"] for each in found.get("status", {}).get("conditions", [])]

    until(lambda: "Running" in conditions(), conditions)
    jobs.delete_namespaced_custom_object(*GROUP, "train")


def test_logs_complete_and_followed(api: client.CoreV1Api) -> None:
    complete = api.read_namespaced_pod_log("talker", SPACE, container="second")
    assert complete == "second speaks\n"
    followed = watch.Watch().stream(
        api.read_namespaced_pod_log, "talker", SPACE, container="first", follow=True
    )
    lines = [line for line, _ in zip(followed, range(4), strict=False)]
    assert lines[:2] == ["first speaks", "a second line"]


def test_exec_whole(api: client.CoreV1Api) -> None:
    output = stream.stream(
        api.connect_get_namespaced_pod_exec,
        "talker",
        SPACE,
        container="first",
        command=["sh", "-c", "echo out; echo err >&2"],
        stdout=True,
        stderr=True,
    )
    assert set(output.split()) == {"out", "err"}


def test_exec_in_dialogue(api: client.CoreV1Api) -> None:
    session = stream.stream(
        api.connect_get_namespaced_pod_exec,
        "talker",
        SPACE,
        container="first",
        command=["sh"],
        stdin=True,
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    session.write_stdin("echo word\n")
    assert session.readline_stdout(timeout=20) == "word"
    session.write_stdin("echo trouble >&2; exit 3\n")
    session.run_forever(timeout=20)
    assert session.read_stderr() == "trouble\n"
    assert session.returncode == 3
    session.close()


def test_exec_refused_says_why(api: client.CoreV1Api) -> None:
    with pytest.raises(client.ApiException) as refused:
        stream.stream(
            api.connect_get_namespaced_pod_exec, "nobody", SPACE, command=["true"], stdout=True
        )
    assert refused.value.status in (0, 404)
    assert "404" in str(refused.value)


def test_port_forward(api: client.CoreV1Api) -> None:
    served = api.list_namespaced_pod(SPACE, label_selector="app=web").items[0].metadata.name
    forward = stream.portforward(
        api.connect_get_namespaced_pod_portforward, served, SPACE, ports="8080"
    )
    connection = forward.socket(8080)
    connection.setblocking(True)
    connection.sendall(b"GET /hostname HTTP/1.0\r\n\r\n")
    answer = b""
    watchdog = threading.Timer(20, connection.close)
    watchdog.start()
    while block := connection.recv(4096):
        answer += block
    watchdog.cancel()
    assert answer.startswith(b"HTTP/1.0 200 OK")
    assert forward.error(8080) is None
    forward.close()
    for thread in threading.enumerate():
        if thread.name.startswith("Kubernetes port forward"):
            thread.join(20)
