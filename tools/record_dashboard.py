"""Takes the pictures of docs/dashboard.md from a real run, in light and dark colours.

    python tools/record_dashboard.py [NAME...]

An embedded cluster with counted GPUs runs a job that loses a worker and goes on, one that fails,
and a gang that waits in its queue. Chromium (Debian's, or CHROMIUM) shows the cluster's dashboard.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
GANGLINE = [sys.executable, "-m", "gangline"]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_S = 180
JOBS = "jobs/default/elasticjob/digits"
PAGES = {
    "overview": "",
    "job": f"{JOBS}?tab=curves",
    "failed": "jobs/default/pytorchjob/broken",
    "queues": "queues",
    "nodes": "nodes",
}
TRAIN = """
import os, signal, time
from pathlib import Path

rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
checkpoint = Path(__file__).with_name(f"checkpoint-{rank}")
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
for step in range(first + 1, 2000):
    time.sleep(0.2)
    loss = 2.3 / (1 + step / 20) + 0.02 * (step % 7)
    report = f"step {step}\\nloss {loss:.4f}\\nmetric.accuracy {1 - loss / 2.5:.4f}\\n"
    Path(os.environ["GANGLINE_PROGRESS_FILE"]).write_text(report)
    if step % 50 == 0:
        checkpoint.write_text(str(step))
    if (step, rank, restarts) == (180, 1, 0):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _container(*command: str, gpus: int, name: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {"name": name, "image": "team/train:1", "command": list(command),
            "resources": {"limits": limits}}  # fmt: skip


def _pod(*command: str, gpus: int, name: str = "main") -> dict[str, Any]:
    return {"spec": {"containers": [_container(*command, gpus=gpus, name=name)]}}


def jobs(script: Path) -> list[dict[str, Any]]:
    """Return one job that trains, one that fails, and one that waits."""
    agent = ("gangline", "run", "--nnodes=1:2", "--nproc-per-node=1", str(script))
    broken = _pod("python", "-c", "raise RuntimeError('no such file: /data/train.bin')", gpus=1,
                 name="pytorch")  # fmt: skip
    large = _pod("python", "-c", "print(1)", gpus=8, name="pytorch")
    return [
        {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob",
         "metadata": {"name": "digits", "annotations": {"gangline.dev/owner": "mei"}},
         "spec": {"distributionStrategy": "AllreduceStrategy",
                  "replicaSpecs": {"worker": {"replicas": 2, "template": _pod(*agent, gpus=4)}}}},
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
         "metadata": {"name": "broken", "annotations": {"gangline.dev/owner": "tomas"}},
         "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never",
                                                     "template": broken}}}},
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
         "metadata": {"name": "large", "annotations": {"gangline.dev/owner": "mei"}},
         "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": large}}}},
    ]  # fmt: skip


class Cluster:
    """An embedded cluster with its dashboard, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "GANGLINE_HOME": str(folder)}

    def run(self, *arguments: str) -> str:
        """Run a command of gangline and return its output."""
        command = [*GANGLINE, *arguments]
        done = subprocess.run(
            command, check=False, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr}")
        return done.stdout

    def until_running(self, name: str) -> None:
        """Wait until a job runs with all its replicas."""
        deadline = time.monotonic() + PATIENCE_S
        while "RUNNING" not in self.run("get", name):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} does not run: {self.run('list')}")
            time.sleep(1)


def take(address: str, names: list[str]) -> None:
    """Take the pictures of pages in both schemes."""
    base = address.partition("?")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": 1120, "height": 720}, color_scheme=scheme, locale="en"
            )
            page.goto(address)
            for name in names:
                page.goto(base + PAGES[name])
                page.wait_for_timeout(1500)  # the charts are drawn after the page
                target = IMAGES / f"dashboard-{name}-{scheme}.png"
                page.screenshot(path=target)
                print(target.relative_to(ROOT))
        browser.close()


def main() -> None:
    """Run the jobs and take the pictures of the named pages, or of all."""
    names = sys.argv[1:] or list(PAGES)
    if unknown := set(names) - set(PAGES):
        raise SystemExit(f"no pages {', '.join(sorted(unknown))}: {', '.join(PAGES)}")
    with tempfile.TemporaryDirectory() as folder:
        cluster, script = Cluster(Path(folder)), Path(folder, "train.py")
        script.write_text(TRAIN)
        cluster.run("up", "--detach", "--dashboard", "--nodes", "2", "--cpus", "8", "--gpus", "8")
        try:
            for number, job in enumerate(jobs(script)):
                manifest = Path(folder, f"job-{number}.json")
                manifest.write_text(json.dumps(job))
                cluster.run("submit", "-f", str(manifest))
            cluster.until_running("digits")
            time.sleep(90)  # the worker dies after 36 s
            cluster.until_running("digits")
            address = cluster.run("dashboard", "--no-open").partition("Dashboard: ")[2].split()[0]
            take(address, names)
        finally:
            cluster.run("down")


if __name__ == "__main__":
    main()
