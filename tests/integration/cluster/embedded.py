"""A complete embedded cluster in a process of its own, as ``gangline up`` starts it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.local import cleanup
from gangline.local.directory import ClusterDirectory
from gangline.local.network.bridge import kernel_prefix

T = TypeVar("T")

STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 60.0


@dataclass
class EmbeddedCluster:
    """One cluster that a test may start, kill and start again."""

    root: Path
    arguments: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    """A command before that of the cluster, which it must become (``exec``)."""
    process: subprocess.Popen[bytes] | None = None
    outputs: list[Path] = field(default_factory=list)

    @property
    def home(self) -> ClusterDirectory:
        """The cluster's folder."""
        return ClusterDirectory(self.root)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that select this cluster."""
        kubeconfig = str(self.home.default_kubeconfig)
        return {**os.environ, "GANGLINE_HOME": str(self.root), "KUBECONFIG": kubeconfig}

    def launch(self) -> None:
        """Start the process, without waiting for anything."""
        output = self.root / f"up-{len(self.outputs)}.log"
        self.root.mkdir(parents=True, exist_ok=True)
        self.outputs.append(output)
        # Durability "disk" has tests of its own; the others need not wait for fsync.
        options = ("--port", "0", "--durability", "process", *self.arguments)
        command = [*self.wrapper, sys.executable, "-m", "gangline", "up", *options]
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL
            )

    async def start(self) -> None:
        """Start the process and wait until it reports that the cluster is ready."""
        self.launch()
        assert self.process is not None
        pid = self.process.pid

        async def answers() -> bool:
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"the cluster ended: {self.said()}")
            note = self.home.read_run_record()
            # The API server answers before the definitions exist; users see readiness later.
            return note is not None and note.pid == pid and "Ctrl-C stops it" in self.said()

        await until(answers, STARTS_WITHIN_S, self.said)

    def said(self) -> str:
        """The output of the present process."""
        return self.outputs[-1].read_text() if self.outputs else ""

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, STOPS_WITHIN_S)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``gangline`` command against this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "gangline", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ApiClient]:
        """A client with all rights."""
        async with ApiClient(load_config(str(self.home.default_kubeconfig))) as client:
            yield client

    def left_behind(self) -> list[str]:
        """Everything on the machine that carries this cluster's mark."""
        mark = kernel_prefix(self.home.folder)
        networks = [f"namespace {path.name}" for path in Path("/run/netns").glob(f"*{mark}*")]
        links = [f"link {path.name}" for path in Path("/sys/class/net").glob(f"*{mark}*")]
        mounts = [f"mount {path}" for path in cleanup.list_mounts_below(self.root)]
        groups = [f"group {path}" for path in cleanup.list_control_groups(self.home.folder)]
        memory = [f"memory {path}" for path in Path("/dev/shm").glob(f"*{mark}*")]
        return networks + links + mounts + groups + memory


def running(words: str) -> list[int]:
    """The processes whose command line contains ``words``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(int(process.name))
    return found


async def until(
    check: Callable[[], Awaitable[T]],
    within_s: float = 60.0,
    explain: Callable[[], object] = lambda: "",
) -> T:
    """Wait until ``check`` returns a true value, and return it."""
    try:
        async with asyncio.timeout(within_s):
            while not (found := await check()):
                await asyncio.sleep(0.05)
            return found
    except TimeoutError:
        raise AssertionError(f"condition not met within {within_s} s: {explain()}") from None


@asynccontextmanager
async def embedded(root: Path, *arguments: str) -> AsyncIterator[EmbeddedCluster]:
    """Run a cluster in a folder; everything is removed, whatever the test does to it."""
    cluster = EmbeddedCluster(root, arguments)
    try:
        await cluster.start()
        yield cluster
    finally:
        if cluster.process is not None and cluster.process.poll() is None:
            try:
                await cluster.end()
            except subprocess.TimeoutExpired:
                cluster.process.kill()
                cluster.process.wait()
        await cleanup.remove_leftovers(cluster.home.folder)


@contextmanager
def cluster_of_module(root: Path, *arguments: str) -> Iterator[EmbeddedCluster]:
    """The same for a fixture of several tests, which has no event loop."""
    with asyncio.Runner() as runner:
        context = embedded(root, *arguments)
        cluster = runner.run(context.__aenter__())
        try:
            yield cluster
        finally:
            runner.run(context.__aexit__(None, None, None))
