"""The official Python client against a complete cluster: dialogues, refusals, forwarded ports.

What `tests/frameworks/client_scripts` does with every version of it is not repeated here.
"""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes import client, config, stream

from integration.cluster.embedded import EmbeddedCluster
from integration.kubectl.manifests import TALKER, WEB
from integration.kubectl.tool import until

# The client leaks connections that the server closed, and those of refused streams.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SPACE = "official"


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
