"""Clients that are not ours: their environments, scripts and steps, on any cluster.

``tools/client_environments.py`` makes the environments. The scripts print each step that succeeds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from kubernetes import client, config

from integration.kubectl.tool import until

CACHE = Path(__file__).parents[2] / ".cache"
ENVIRONMENTS = (CACHE / "client-environments.json", CACHE / "ci" / "client-environments.json")
"""The map that ``make test-frameworks`` writes, and the one that a complete run writes earlier."""
SCRIPTS = Path(__file__).parent / "client_scripts"
WITHIN_S = 180
OFFICIAL = ("official.py", ["watches", "follows", "executes", "patches", "applies", "pages"])
CLIENTS = {
    "official-28": OFFICIAL,
    "official-31": OFFICIAL,
    "official-35": OFFICIAL,
    "official-36": OFFICIAL,
    "pinned": OFFICIAL,
    "asyncio": ("asyncio_client.py", OFFICIAL[1]),
    "kr8s": ("kr8s_client.py", ["watches", "follows", "executes", "patches", "pages"]),
    "lightkube": ("lightkube_client.py", OFFICIAL[1]),
    "kopf": ("kopf_operator.py", ["watches", "patches", "finalizes"]),
    "kubeflow": (
        "kubeflow_trainer.py",
        [
            "lists",
            "trains",
            "reads_packages",
            "trains_container",
            "resizes",
            "waits",
            "resumes",
            "deletes",
        ],
    ),
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


def interpreters() -> dict[str, str]:
    """The interpreter of each client; only the pinned official one without environments."""
    made = next((path for path in ENVIRONMENTS if path.exists()), None)
    found: dict[str, str] = json.loads(made.read_text()) if made else {}
    return {**found, "pinned": sys.executable}


def _created(core: client.CoreV1Api, namespace: str) -> bool:
    """Create the pod; False where the service account has no token yet, as before 1.24."""
    try:
        core.create_namespaced_pod(namespace, yaml.safe_load(TALKER))
    except client.ApiException as error:
        if error.status != 500:
            raise
        return False
    return True


def check_client(name: str, interpreter: str, kubeconfig: Path, namespace: str) -> None:
    """Run a client in a namespace of its own; all of its steps succeed."""
    script, steps = CLIENTS[name]
    with config.new_client_from_config(str(kubeconfig)) as connected:
        core = client.CoreV1Api(connected)
        core.create_namespace({"metadata": {"name": namespace}})
        until(lambda: core.list_namespaced_service_account(namespace).items)
        until(lambda: _created(core, namespace))
        until(lambda: core.read_namespaced_pod("talker", namespace).status.phase == "Running")
        done = subprocess.run(
            [interpreter, str(SCRIPTS / script), namespace],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        core.delete_namespace(namespace)
    printed = [line for line in done.stdout.splitlines() if line in steps]
    assert (done.returncode, printed) == (0, steps), f"{name}: {done.stdout}"
