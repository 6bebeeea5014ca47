"""``demo``: three nodes on this machine train a network, a worker is killed, the job recovers.

Everything is real: the cluster of ``gangline up``, a PyTorchJob of three pods, gloo between them, a
SIGKILL. The cluster runs in this process and lives in a folder of its own, which is removed at the
end, also after Ctrl-C.
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

from gangline.cli.demo_story import Story
from gangline.cli.demo_view import View
from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.log_format import start_logging
from gangline.cli.options import debug_option

if TYPE_CHECKING:
    from gangline.local.cluster import Ready

NAMESPACE = "default"
JOB = "digits"
REPLICAS = ("master-0", "worker-0", "worker-1")
VICTIM = "worker-1"
PATIENCE_S = 60.0
"""How long the kind of training jobs may be unknown."""
WAIT_TOLD_S = 20.0
GIVES_UP_S = 900.0
"""Twenty times what it takes on two cores."""


@click.command("demo")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=450,
    show_default=True,
    help="Training steps; with much fewer the network does not become good enough.",
)
@click.option("--keep-going", is_flag=True, help="Leave the worker alone.")
@debug_option
def demo_command(steps: int, keep_going: bool) -> int:
    """Train a small network in three pods, kill one of them half-way, and show what it cost.

    Nothing has to be prepared; torch and scikit-learn must be installed beside gangline. It works
    in a cluster of its own, which is gone afterwards.
    """
    import uvloop  # noqa: PLC0415 - only who runs a cluster is to pay for it

    from gangline.cli.demo_cluster import interruptible  # noqa: PLC0415

    _check_packages()
    example = _example_folder()
    with _component_log() as log:
        code = uvloop.run(interruptible(_demo(example, steps, kill=not keep_going)))
    if code == ExitCode.JOB_FAILED:
        click.echo(f"What the components complained of is in {log}.", err=True)
    return code


async def _demo(example: Path, steps: int, *, kill: bool) -> int:
    from gangline.cli.cluster import cluster_errors  # noqa: PLC0415
    from gangline.cli.demo_cluster import NODES, demo_cluster, remove_forsaken  # noqa: PLC0415
    from gangline.local.home import default_home  # noqa: PLC0415

    view = View(steps, REPLICAS)
    for name in await remove_forsaken(default_home()):
        view.note(f"Removed what {name} had left, which was killed.")
    story = Story(steps, kill_wanted=kill)
    view.phase(f"Starting a cluster of {NODES} nodes in this process")
    with cluster_errors():
        async with demo_cluster() as ready:
            story.cluster_answers()
            view.note(f"the API server answers at {ready.url} after {story.cluster_start:.1f} s")
            for note in await _shortcomings(ready):
                view.note(f"note: {note}")
            code = await _train(ready, example, story, view)
            view.phase("Cleaning up")
    view.report(story)
    return code


async def _shortcomings(ready: "Ready") -> list[str]:
    """Say what pods must do without on this machine."""
    from gangline.local.kubelet.runtime.isolation import detect  # noqa: PLC0415

    gap = (await asyncio.to_thread(detect)).gap
    return [note for note in (ready.shortcoming, gap) if note]


async def _train(ready: "Ready", example: Path, story: Story, view: View) -> int:
    from gangline.kube.client import Client  # noqa: PLC0415
    from gangline.kube.config import load_config  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415
    from gangline.sdk.logs import following_logs  # noqa: PLC0415

    async with Client(load_config(ready.kubeconfig), user_agent="gangline-demo") as client:
        jobs = JobClient(client)
        for manifest in manifests(example, story.steps):
            await _accepted(jobs, manifest)
        story.submitted()
        view.phase(f"Training: PyTorchJob {JOB}, one master and two workers")
        job = await jobs.get(JOB, NAMESPACE)
        with view.progress():
            async with _said_why(jobs, story, view), following_logs(client, job) as lines:
                async for line in lines:
                    story.line(line.replica, line.text)
                    view.line(line.replica, line.text)
                    if story.kill_is_due and kill_replica(VICTIM):
                        story.kill(VICTIM)
                        view.killed(VICTIM)
        ended = await jobs.wait(JOB, NAMESPACE)
    story.ended(ended.state, ended.restarts)
    return ExitCode.DONE if story.succeeded else ExitCode.JOB_FAILED


@contextlib.asynccontextmanager
async def _said_why(jobs: Any, story: Story, view: View) -> AsyncIterator[None]:
    """Say now and then why there is no first step yet.

    Raises:
        CommandError: the block takes so long that it will not end.
    """

    async def say() -> None:
        while story.first_step < 0:
            await asyncio.sleep(WAIT_TOLD_S)
            job = await jobs.get(JOB, NAMESPACE)
            if story.first_step < 0 and job.reason:
                view.note(f"waiting: {job.reason}")

    telling = asyncio.create_task(say())
    try:
        async with asyncio.timeout(GIVES_UP_S):
            yield
    except TimeoutError:
        raise CommandError(f"the demo did not end within {GIVES_UP_S:.0f} s") from None
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _accepted(jobs: Any, manifest: dict[str, Any]) -> None:
    """Submit; the kinds of training jobs are known a moment after the first answer."""
    from gangline.sdk.client import UnknownKind  # noqa: PLC0415

    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            await jobs.submit(manifest, NAMESPACE)
        except UnknownKind:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            return


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


@contextlib.contextmanager
def _component_log() -> Iterator[Path]:
    """Keep what components warn of out of the picture: it goes to a file of the data folder."""
    from gangline.local.home import default_home  # noqa: PLC0415

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
    """Where the example lies: beside the package in a checkout, inside it when installed."""
    package = Path(str(files("gangline")))
    for folder in (package / "examples" / "pytorch", package.parents[1] / "examples" / "pytorch"):
        if (folder / "digits.py").exists():
            return folder
    raise CommandError("the example that the demo runs is not installed with this package")


def kill_replica(replica: str) -> bool:
    """Send SIGKILL to a replica's training process, found among our own descendants."""
    found = False
    address = f"HOSTNAME={JOB}-{replica}".encode()
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if command[0].endswith(b"python") and address in environment:
                os.kill(pid, signal.SIGKILL)
                found = True
    return found


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (path / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))
