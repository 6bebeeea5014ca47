"""Takes the pictures of docs/dashboard.md from a real run, in light and dark colours.

    python tools/record_dashboard.py [NAME...]

An embedded cluster with simulated GPUs runs the demo's kind of job, which loses a worker and
continues, a job that fails, and a gang that waits in its queue. Chromium (Debian's, or CHROMIUM)
shows the cluster's dashboard. `make setup` and `.venv/bin/pip install playwright` come before.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
GANGLINE = [sys.executable, "-m", "gangline"]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE: ViewportSize = {"width": 1180, "height": 760}
QUALITY = 80
PATIENCE_S = 240
STEPS = 600
"""The job has made so many when the pictures are taken."""
DIGITS = "jobs/default/elasticjob/digits"
PAGES = {
    "overview": "",
    "curves": f"{DIGITS}/curves",
    "failed": "jobs/default/pytorchjob/broken",
    "waiting": "jobs/default/pytorchjob/large",
    "nodes": "nodes",
}
SCROLLED = {"curves": 340}
"""Pixels from the top at which a picture begins."""
TRAIN = r"""
import os, signal, time
from pathlib import Path

rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
checkpoint = Path(__file__).with_name(f"checkpoint-{rank}")
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
for step in range(first + 1, 3000):
    time.sleep(0.1)
    loss = 2.3 / (1 + step / 40) + 0.02 * (step % 7)
    report = f"step {step}\nloss {loss:.4f}\nmetric.accuracy {1 - loss / 2.5:.4f}\n"
    Path(os.environ["GANGLINE_PROGRESS_FILE"]).write_text(report)
    if step % 50 == 0:
        checkpoint.write_text(str(step))
    if (step, rank, restarts) == (270, 1, 0):
        os.kill(os.getpid(), signal.SIGKILL)
"""
BROKEN = "import sys; sys.exit(open('/data/train.bin').read())"


def job(kind: str, name: str, owner: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with its owner."""
    version = "elastic.iml.github.io/v1alpha1" if kind == "ElasticJob" else "kubeflow.org/v1"
    metadata = {"name": name, "annotations": {"gangline.dev/owner": owner}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def replicas(count: int, gpus: int, *command: str, folder: str = "") -> dict[str, Any]:
    """Return the specification of replicas with GPUs, which may see a folder of this machine."""
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": "team/train:1",
        "command": list(command),
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    pod: dict[str, Any] = {"containers": [container]}
    if folder:
        container["volumeMounts"] = [{"name": "script", "mountPath": folder}]
        pod["volumes"] = [{"name": "script", "hostPath": {"path": folder}}]
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def jobs(folder: str) -> list[dict[str, Any]]:
    """Return one job that trains, one that fails, and one that waits."""
    agent = ("gangline", "run", "--nnodes=1:2", "--nproc-per-node=1", f"{folder}/train.py")
    digits = {"worker": replicas(2, 4, *agent, folder=folder)}
    broken = {"Master": replicas(1, 1, "python", "-c", BROKEN)}
    large = {"Worker": replicas(3, 8, "python", "-c", "print(1)")}
    strategy = {"distributionStrategy": "AllreduceStrategy"}
    return [
        job("ElasticJob", "digits", "mei", {**strategy, "replicaSpecs": digits}),
        job("PyTorchJob", "broken", "tomas", {"pytorchReplicaSpecs": broken}),
        job("PyTorchJob", "large", "mei", {"pytorchReplicaSpecs": large}),
    ]


class Cluster:
    """An embedded cluster with its dashboard, in a folder of its own."""

    def __init__(self, folder: str) -> None:
        self.environment = {**os.environ, "GANGLINE_HOME": folder}
        self.address = ""

    def run(self, *arguments: str) -> str:
        """Run a command of gangline and return its output."""
        command = [*GANGLINE, *arguments]
        done = subprocess.run(
            command, check=False, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr}")
        return done.stdout

    def head(self, path: str) -> Mapping[str, Any]:
        """Return the row of a job, as the dashboard shows it."""
        base, _, token = self.address.partition("?token=")
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(base + path, headers=headers)) as answer:
            row: Mapping[str, Any] = json.load(answer)["head"]["row"]
        return row

    def until(self, path: str, state: str, steps: int = 0) -> None:
        """Wait until a job has a state, and has made some steps."""
        deadline = time.monotonic() + PATIENCE_S
        while (row := self.head(path))["state"] != state or (row["step"] or 0) < steps:
            if time.monotonic() > deadline or row["state"] == "FAILED":
                raise SystemExit(f"{path} is not {state}: {row}")
            time.sleep(1)


def take(address: str, names: list[str]) -> None:
    """Take the pictures of pages in both schemes."""
    base = address.partition("?")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, locale="en")
            devtools = page.context.new_cdp_session(page)
            page.goto(address)
            for name in names:
                page.goto(base + PAGES[name], wait_until="load")
                page.wait_for_timeout(3000)  # figures that are read arrive by the stream
                page.evaluate(f"scrollTo(0, {SCROLLED.get(name, 0)})")
                shot = devtools.send(
                    "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
                )
                target = IMAGES / f"dashboard-{name}-{scheme}.webp"
                target.write_bytes(base64.b64decode(shot["data"]))
                print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")
        browser.close()


def main() -> None:
    """Run the jobs and take the pictures of the named pages, or of all."""
    names = sys.argv[1:] or list(PAGES)
    if unknown := set(names) - set(PAGES):
        raise SystemExit(f"no pages {', '.join(sorted(unknown))}: {', '.join(PAGES)}")
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(folder)
        Path(folder, "train.py").write_text(TRAIN)
        cluster.run("up", "--detach", "--dashboard", "--nodes", "2", "--cpus", "8", "--gpus", "8")
        try:
            for number, body in enumerate(jobs(folder)):
                manifest = Path(folder, f"job-{number}.json")
                manifest.write_text(json.dumps(body))
                cluster.run("submit", "-f", str(manifest))
            shown = cluster.run("dashboard", "--no-open")
            cluster.address = shown.partition("Dashboard: ")[2].split()[0]
            cluster.until(PAGES["waiting"], "QUEUING")
            cluster.until(DIGITS, "RUNNING", STEPS)
            take(cluster.address, names)
        finally:
            cluster.run("down")


if __name__ == "__main__":
    main()
