"""``demo``: train a network on three local nodes, kill a worker, and show the recovery.

The parts are real: the embedded cluster of ``gangline up``, a PyTorchJob with three pods, gloo
between them, a SIGKILL. The cluster runs in this process in a folder of its own. The folder is
removed at the end, and after Ctrl-C.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.component_logging import start_logging
from gangline.cli.demo.view import DemoTimeline, DemoView
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.event_loop import background
from gangline.cli.params.command import command
from gangline.cli.params.options import debug_option

if TYPE_CHECKING:
    from gangline.local.cluster import ClusterReady

NAMESPACE = "default"
JOB = "digits"
REPLICAS = ("master-0", "worker-0", "worker-1")
VICTIM = "worker-1"
DEMO_TIMEOUT_S = 900.0
"""Time limit of the demo: twenty times its duration on two cores."""


@command(
    "demo",
    examples="""
        gangline demo
        gangline demo --keep-going   # without breaking a worker
    """,
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=450,
    show_default=True,
    help="Training steps; with far fewer steps the accuracy stays too low.",
)
@click.option("--keep-going", is_flag=True, help="Do not kill the worker.")
@debug_option
def demo_command(steps: int, keep_going: bool) -> int:
    """Train a small network in three pods, kill one of them half-way, and report the cost.

    No preparation is needed; torch and scikit-learn must be installed with gangline. The demo runs
    in a cluster of its own, which is removed afterwards.
    """
    import uvloop

    from gangline.cli.demo.cluster import run_interruptible

    _check_packages()
    example = _example_folder()
    with _component_log() as log:
        code = uvloop.run(run_interruptible(_demo(example, steps, kill=not keep_going)))
    if code == ExitCode.JOB_FAILED:
        click.echo(f"Warnings of the components are in {log}.", err=True)
    return code


async def _demo(example: Path, steps: int, *, kill: bool) -> int:
    from gangline.cli.demo.cluster import NODES, demo_cluster, remove_stale_clusters
    from gangline.local.directory import default_home

    view = DemoView(REPLICAS)
    for name in await remove_stale_clusters(default_home()):
        view.print_note(f"Removed the remains of {name}, which was killed.")
    timeline = DemoTimeline(steps, kill_planned=kill)
    view.print_phase(f"Starting a cluster of {NODES} nodes in this process")
    async with demo_cluster() as ready:
        timeline.mark_cluster_ready()
        view.print_note(f"API server ready at {ready.url} after {timeline.cluster_start_s:.1f} s")
        for note in await _environment_notes(ready):
            view.print_note(f"note: {note}")
        code = await _train(ready, example, timeline, view)
        view.print_phase("Cleaning up")
    view.print_summary(timeline)
    return code


async def _environment_notes(ready: "ClusterReady") -> list[str]:
    """Return notes on isolation features that this machine lacks."""
    from gangline.local.kubelet.runtime.isolation import detect_isolation

    gap = (await asyncio.to_thread(detect_isolation)).limitation
    return [note for note in (ready.limitation, gap) if note]


async def _train(
    ready: "ClusterReady", example: Path, timeline: DemoTimeline, view: DemoView
) -> int:
    from gangline.cli.submit.submission import JobObserver
    from gangline.kube.client.client import ApiClient
    from gangline.kube.config.config import load_config
    from gangline.sdk.client import JobClient
    from gangline.sdk.logs import follow_logs

    async with ApiClient(load_config(ready.kubeconfig), user_agent="gangline-demo") as client:
        jobs = JobClient(client)
        for manifest in build_manifests(example, timeline.steps):
            await jobs.submit(manifest, NAMESPACE)
        timeline.mark_submitted()
        view.print_phase(f"Training: PyTorchJob {JOB}, one master and two workers")
        job = await jobs.get(JOB, NAMESPACE)
        with view.job_status(JOB) as status:
            observer = JobObserver(jobs, status, steps=timeline.progress)
            async with (
                _time_limit(),
                background(observer.run(JOB, NAMESPACE)),
                follow_logs(client, job) as lines,
            ):
                async for line in lines:
                    timeline.observe_line(line.replica, line.text)
                    view.print_line(line.replica, line.text)
                    if timeline.kill_is_due and kill_replica(VICTIM):
                        timeline.mark_killed(VICTIM)
                        view.print_kill(VICTIM)
        ended = await jobs.wait(JOB, NAMESPACE)
    timeline.mark_ended(ended.state, ended.restarts)
    return ExitCode.DONE if timeline.succeeded else ExitCode.JOB_FAILED


@contextlib.asynccontextmanager
async def _time_limit() -> AsyncIterator[None]:
    """Limit the time of the block.

    Raises:
        CommandError: the block exceeds the time limit of the demo.
    """
    try:
        async with asyncio.timeout(DEMO_TIMEOUT_S):
            yield
    except TimeoutError:
        raise CommandError(f"the demo did not end within {DEMO_TIMEOUT_S:.0f} s") from None


def build_manifests(example: Path, steps: int) -> list[dict[str, Any]]:
    """Return the objects to submit: the example with its steps, and its script as a ConfigMap."""
    import yaml

    script = (example / "digits.py").read_text()
    documents = list(yaml.safe_load_all((example / "digits.yaml").read_text()))
    for document in documents:
        replicas = document["spec"].get("pytorchReplicaSpecs", {})
        for replica in replicas.values():
            container = replica["template"]["spec"]["containers"][0]
            container["command"] = [*container["command"][:2], "--steps", str(steps)]
            container["command"] += ["--checkpoint", "/checkpoint/digits.pt"]
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": JOB},
        "data": {"digits.py": script},
    }
    return [configuration, *documents]


@contextlib.contextmanager
def _component_log() -> Iterator[Path]:
    """Write warnings of components to a file in the data folder instead of the terminal."""
    from gangline.local.directory import default_home

    path = default_home() / "demo.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise CommandError(
            f"cannot write {path}: {error.strerror}; choose another folder with GANGLINE_HOME"
        ) from error
    with file:
        start_logging("warning", file)
        yield path
        start_logging("error")


def _check_packages() -> None:
    missing = [name for name in ("torch", "sklearn") if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the demo trains with torch and scikit-learn; not installed: {', '.join(missing)}",
            hint="Install them with 'pip install gangline[demo]', or run 'make demo'.",
        )


def _example_folder() -> Path:
    """Return the folder of the example: next to the package in a checkout, inside it when
    installed.
    """
    package = Path(str(files("gangline")))
    for folder in (package / "examples" / "pytorch", package.parents[1] / "examples" / "pytorch"):
        if (folder / "digits.py").exists():
            return folder
    raise CommandError("the example that the demo runs is not installed with gangline")


def kill_replica(replica: str) -> bool:
    """Send SIGKILL to the training process of a replica; return whether it was found.

    The process is a descendant of this one.
    """
    from gangline.local.kubelet.runtime.process_tree import walk_process_tree

    is_found = False
    address = f"HOSTNAME={JOB}-{replica}".encode()
    for pid in walk_process_tree(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if command[0].endswith(b"python") and address in environment:
                os.kill(pid, signal.SIGKILL)
                is_found = True
    return is_found
