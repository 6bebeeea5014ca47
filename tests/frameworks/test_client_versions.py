"""Clients that are not ours, each in an environment of its own, on one embedded cluster.

``tools/client_environments.py`` makes the environments. The scripts print each step that succeeds.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster
from integration.kubectl.tool import until

ENVIRONMENTS = Path(__file__).parents[2] / ".cache" / "client-environments.json"
SCRIPTS = Path(__file__).parent / "client_scripts"
WITHIN_S = 180
OFFICIAL = ("official.py", ["watches", "follows", "executes", "patches", "applies", "pages"])
CLIENTS = {
    "official-28": OFFICIAL,
    "official-31": OFFICIAL,
    "official-35": OFFICIAL,
    "official-36": OFFICIAL,
    "pinned": OFFICIAL,
    "asyncio": ("asyncio_client.py", ["watches", "follows", "executes", "pages"]),
    "kr8s": ("kr8s_client.py", ["watches", "follows", "executes", "pages"]),
    "lightkube": ("lightkube_client.py", ["watches", "follows", "patches", "applies", "pages"]),
    "kopf": ("kopf_operator.py", ["watches", "patches", "finalizes"]),
    "kubeflow": ("kubeflow_trainer.py", ["lists", "trains", "waits", "resumes", "deletes"]),
}
TALKER = """
metadata: {name: talker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: "busybox:1"
    command: [sh, -c, 'i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.3; done']
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def interpreters() -> dict[str, str]:
    if not ENVIRONMENTS.exists():
        pytest.skip(f"there is no {ENVIRONMENTS}: run tools/client_environments.py --map")
    found: dict[str, str] = json.loads(ENVIRONMENTS.read_text())
    return {**found, "pinned": sys.executable}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    home = tmp_path_factory.mktemp("clients") / "home"
    running = EmbeddedCluster(home, ("--nodes", "1", "--cpus", "4", "--memory", "4Gi"))
    try:
        asyncio.run(running.start())
        yield running
    finally:
        process = running.process
        if process is not None and process.poll() is None:
            try:
                asyncio.run(running.end())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        asyncio.run(cleanup.remove_leftovers(home))


@pytest.mark.parametrize("name", CLIENTS)
def test_client_does_its_steps(
    cluster: EmbeddedCluster, interpreters: dict[str, str], name: str
) -> None:
    script, steps = CLIENTS[name]
    kubeconfig = str(cluster.home.default_kubeconfig)
    with config.new_client_from_config(kubeconfig) as connected:
        core = client.CoreV1Api(connected)
        core.create_namespace({"metadata": {"name": name}})
        until(lambda: core.list_namespaced_service_account(name).items)
        core.create_namespaced_pod(name, yaml.safe_load(TALKER))
        until(lambda: core.read_namespaced_pod("talker", name).status.phase == "Running")
        done = subprocess.run(
            [interpreters[name], str(SCRIPTS / script), name],
            env={**os.environ, "KUBECONFIG": kubeconfig},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        core.delete_namespace(name)
    printed = [line for line in done.stdout.splitlines() if line in steps]
    assert (done.returncode, printed) == (0, steps), done.stdout
