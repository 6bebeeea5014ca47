"""The demo's cluster: in this process, in a folder of its own that is gone afterwards.

A demo that was killed outright leaves its folder behind, and as root a bridge and namespaces; the
next demo finds it by its name and removes both.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import click

from gangline.cli.exit_codes import ExitCode
from gangline.local import leftovers
from gangline.local.cluster import Cluster, Ready
from gangline.local.home import AlreadyRunning, ClusterHome, Lock, process_start
from gangline.local.settings import ClusterSettings

NODES = 3
PREFIX = "demo-"


async def interruptible(work: Awaitable[int]) -> int:
    """Let Ctrl-C and a closed terminal cancel the work once; it then cleans up after itself.

    Further signals change nothing: cutting the clean-up short would leave things behind.
    """
    task = asyncio.ensure_future(work)
    interrupted = False

    def told() -> None:
        nonlocal interrupted
        if interrupted:
            click.echo("Cleaning up already; it takes a moment.", err=True)
        else:
            interrupted = True
            click.echo("\nInterrupted: cleaning up.", err=True)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told)
    try:
        return await task
    except asyncio.CancelledError:
        click.echo("Everything is cleaned up.", err=True)
        return ExitCode.INTERRUPTED


@contextlib.asynccontextmanager
async def demo_cluster() -> AsyncIterator[Ready]:
    """Run a cluster for the time of the block.

    Raises:
        ClusterError: it cannot be started; the message says what to do.
    """
    from gangline.cli.cluster import components  # noqa: PLC0415

    settings = ClusterSettings(
        name=f"{PREFIX}{os.getpid()}",
        nodes=NODES,
        cpus=2,
        memory="4Gi",
        port=0,
        shutdown_grace_s=0,
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
        yield ready.result()
    finally:
        hurry.set()
        stop.set()
        try:
            await _ended(running)
        finally:
            shutil.rmtree(settings.cluster_home.folder, ignore_errors=True)


async def _ended(running: "asyncio.Task[None]") -> None:
    """Wait for the cluster's own clean-up, also when we are cancelled meanwhile."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def remove_forsaken(root: Path) -> list[str]:
    """Remove what killed demos left; return the names of their clusters."""
    removed = []
    for folder in sorted((root / "clusters").glob(f"{PREFIX}*")):
        pid = folder.name.removeprefix(PREFIX)
        if not pid.isdigit() or process_start(int(pid)):
            continue
        with contextlib.suppress(AlreadyRunning, OSError), Lock(ClusterHome(root, folder.name)):
            await leftovers.remove(folder)
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed
