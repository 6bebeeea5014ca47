"""The cluster of the demo: in this process, in a folder of its own that is removed at the end.

A demo that was killed leaves its folder and, if it ran as root, a bridge and network namespaces.
The next demo finds the folder by its name and removes all of them.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gangline.cli.errors import ExitCode
from gangline.kube.config.embedded import process_start_ticks
from gangline.local import cleanup
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.cluster import ClusterReady, EmbeddedCluster
from gangline.local.directory import (
    ClusterAlreadyRunning,
    ClusterDirectory,
    ClusterLock,
)
from gangline.local.settings import ClusterSettings

NODES = 3
PREFIX = "demo-"
IMAGE_MAP = {
    "gangline/examples-pytorch:*": {
        "env": sys.prefix,
        "warm": ["torch"],
        # As in the pods of the demo: PyTorch and the interpreter read these when they start.
        "variables": {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    }
}
"""Maps the image of the example to this environment, with PyTorch imported before a pod starts."""


async def run_interruptible(work: Awaitable[int]) -> int:
    """Cancel the work on Ctrl-C or a closed terminal, and let it clean up.

    Further signals have no effect, because an interrupted clean-up would leave resources behind.
    """
    task = asyncio.ensure_future(work)
    interrupted = False

    def on_signal() -> None:
        nonlocal interrupted
        if interrupted:
            click.echo("Cleaning up; this takes a moment.", err=True)
        else:
            interrupted = True
            click.echo("\nInterrupted: cleaning up.", err=True)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        click.echo("Clean-up is complete.", err=True)
        return ExitCode.INTERRUPTED


@contextlib.asynccontextmanager
async def demo_cluster() -> AsyncIterator[ClusterReady]:
    """Run a cluster for the duration of the block.

    Raises:
        ClusterError: it cannot be started; the message has the remedy.
    """
    from gangline.cli.embedded_components import embedded_components

    settings = ClusterSettings(
        name=f"{PREFIX}{os.getpid()}",
        nodes=NODES,
        cpus=2,
        memory="4Gi",
        port=0,
        shutdown_grace_s=0,
        durability=Durability.PROCESS,  # its folder is removed at the end
    )
    # In the cluster's folder: the next demo removes what a killed one has left.
    images = settings.directory.folder / "demo-images.json"
    settings.directory.prepare()
    images.write_text(json.dumps(IMAGE_MAP))
    settings = replace(settings, image_map=images)
    stop, hurry = asyncio.Event(), asyncio.Event()
    ready: asyncio.Future[ClusterReady] = asyncio.get_running_loop().create_future()
    cluster = EmbeddedCluster(settings, embedded_components(frozenset()), ready.set_result)
    running = asyncio.create_task(cluster.run(stop, hurry))
    started: set[asyncio.Future[Any]] = {ready, running}
    try:
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield ready.result()
    finally:
        hurry.set()
        stop.set()
        try:
            await _wait_for_shutdown(running)
        finally:
            shutil.rmtree(settings.directory.folder, ignore_errors=True)


async def _wait_for_shutdown(running: "asyncio.Task[None]") -> None:
    """Wait for the clean-up of the cluster, even if this task is cancelled meanwhile."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def remove_stale_clusters(root: Path) -> list[str]:
    """Remove what killed demos have left; return the names of their clusters."""
    removed = []
    for folder in sorted((root / "clusters").glob(f"{PREFIX}*")):
        pid = folder.name.removeprefix(PREFIX)
        if not pid.isdigit() or process_start_ticks(int(pid)):
            continue
        with (
            contextlib.suppress(ClusterAlreadyRunning, OSError),
            ClusterLock(ClusterDirectory(root, folder.name)),
        ):
            await cleanup.remove_leftovers(folder)
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed
