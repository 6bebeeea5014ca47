"""``demo``: three nodes on this machine train a network, a worker is killed, the job recovers.

Everything is real: the cluster of ``gangline up``, a PyTorchJob of three pods, gloo between them, a
SIGKILL. The cluster runs in this process and lives in a folder of its own, which is removed at the
end, also after Ctrl-C.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from gangline.cli.demo_story import Story, report
from gangline.cli.demo_view import View
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import debug_option
from gangline.local.cluster import Cluster, Ready
from gangline.local.settings import ClusterSettings

NAMESPACE = "default"
JOB = "digits"
VICTIM = "worker-1"
NODES = 3
KILL_AFTER = 0.4
"""The share of the training that is done when the worker is killed."""
PATIENCE_S = 60.0


@click.command("demo")
@click.option("--steps", default=450, show_default=True, help="Training steps.")
@click.option("--keep-going", is_flag=True, help="Leave the worker alone.")
@debug_option
def demo_command(steps: int, keep_going: bool) -> int:
    """Train a small network in three pods, kill one of them half-way, and show what it cost.

    Nothing has to be prepared; torch and scikit-learn must be installed beside gangline.
    """
    import uvloop  # noqa: PLC0415 - only who runs a cluster is to pay for it

    example = _example_folder()
    return uvloop.run(_interruptible(_demo(example, steps, kill=not keep_going)))


async def _interruptible(work: Awaitable[int]) -> int:
    """Let Ctrl-C and a closed terminal cancel the work, which then cleans up after itself."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        click.echo("\nInterrupted; everything is cleaned up.", err=True)
        return ExitCode.INTERRUPTED


async def _demo(example: Path, steps: int, *, kill: bool) -> int:
    view = View(steps)
    story = Story(steps)
    view.say(f"Starting a cluster of {NODES} nodes in this process.")
    async with _cluster(story) as ready:
        view.say(f"The API server answers after {story.cluster_start:.1f} s at {ready.url}")
        if ready.shortcoming:
            view.say(f"Note: {ready.shortcoming}")
        code = await _train(ready, example, story, view, kill=kill)
    for line in report(story):
        click.echo(line)
    return code


async def _train(ready: Ready, example: Path, story: Story, view: View, *, kill: bool) -> int:
    from gangline.kube.client import Client  # noqa: PLC0415
    from gangline.kube.config import load_config  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415
    from gangline.sdk.logs import following_logs  # noqa: PLC0415

    async with Client(load_config(ready.kubeconfig), user_agent="gangline-demo") as client:
        jobs = JobClient(client)
        for manifest in manifests(example, story.steps):
            await _accepted(jobs, manifest)
        story.submitted()
        view.say(f"Submitted the PyTorchJob {JOB}: one master and two workers.")
        job = await jobs.get(JOB, NAMESPACE)
        with view.progress():
            async with following_logs(client, job) as lines:
                async for line in lines:
                    story.line(line.replica, line.text)
                    view.line(line.replica, line.text)
                    if kill and not story.killed and story.share_done >= KILL_AFTER:
                        _kill_worker()
                        story.kill(VICTIM)
                        view.say(f"Killed the process of {JOB}-{VICTIM} with SIGKILL.")
        ended = await jobs.wait(JOB, NAMESPACE)
    story.ended(ended.state, ended.restarts)
    return ExitCode.DONE if story.succeeded else ExitCode.JOB_FAILED


async def _accepted(jobs: Any, manifest: dict[str, Any]) -> None:
    """Submit; the kinds of training jobs are known a moment after the first answer."""
    from gangline.sdk.client import UnknownKind  # noqa: PLC0415

    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await jobs.submit(manifest, NAMESPACE)
            except UnknownKind:
                await asyncio.sleep(0.02)
            else:
                return


@contextlib.asynccontextmanager
async def _cluster(story: Story) -> AsyncIterator[Ready]:
    """Run a cluster for the time of the block, in a folder that is gone afterwards."""
    from gangline.cli.cluster import components  # noqa: PLC0415

    settings = ClusterSettings(
        name=f"demo-{os.getpid()}", nodes=NODES, cpus=2, memory="4Gi", port=0, shutdown_grace_s=0
    )
    stop, hurry = asyncio.Event(), asyncio.Event()
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    cluster = Cluster(settings, components(frozenset()), ready.set_result)
    running = asyncio.create_task(cluster.run(stop, hurry))
    started: set[asyncio.Future[Any]] = {ready, running}
    try:
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        story.cluster_answers()
        yield ready.result()
    finally:
        hurry.set()
        stop.set()
        await asyncio.gather(running, return_exceptions=True)
        shutil.rmtree(settings.cluster_home.folder, ignore_errors=True)


def manifests(example: Path, steps: int) -> list[dict[str, Any]]:
    """Return what is submitted: the example as it stands, and its script as a ConfigMap."""
    import yaml  # noqa: PLC0415

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


def _example_folder() -> Path:
    """Where the example lies: beside the package in a checkout, inside it when installed."""
    package = Path(str(files("gangline")))
    for folder in (package / "examples" / "pytorch", package.parents[1] / "examples" / "pytorch"):
        if (folder / "digits.py").exists():
            return folder
    raise click.ClickException("the example that the demo runs is not installed with this package")


def _kill_worker() -> None:
    """Send SIGKILL to the training process of the victim, found among our own descendants."""
    wanted = {f"HOSTNAME={JOB}-{VICTIM}".encode(), b"RANK=2"}
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            if command[0].endswith(b"python") and wanted <= environment:
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (path / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))
