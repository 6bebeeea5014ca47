"""A demo in its own process on its own terminal, for interruptions."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from gangline.kube.config.embedded import process_start_ticks
from gangline.local import cleanup
from gangline.local.network.bridge import kernel_prefix
from integration.cluster.embedded import running

WITHIN_S = 90.0
GOES_WITHIN_S = 5.0

AS_FROM_A_TERMINAL = ("env", "--default-signal=INT,HUP")
"""A background shell ignores SIGINT, and its children would inherit that."""


class Demo:
    """One run of ``gangline demo``, leader of a process group as a shell would make it."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.home = root / "home"
        self.temporary = root / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [*AS_FROM_A_TERMINAL, sys.executable, "-m", "gangline", "demo", *arguments],
            env={**os.environ, "GANGLINE_HOME": str(self.home), "TMPDIR": str(self.temporary)},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self.said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    @property
    def folder(self) -> Path:
        """The folder of its cluster."""
        return self.home / "clusters" / f"demo-{self.process.pid}"

    def until(self, words: str) -> None:
        """Read the output until it contains ``words``."""
        deadline = time.monotonic() + WITHIN_S
        while words not in self.said:
            assert time.monotonic() < deadline, f"it never said {words!r}: {self.said}"
            assert self._read(0.2) or self.process.poll() is None, f"it ended: {self.said}"

    def signal_all(self, number: signal.Signals) -> None:
        """Signal its process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def ended(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + WITHIN_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.said}"
            self._read(0.1)
        while self._read(0.0):
            pass
        return self.process.wait()

    def descendants(self) -> dict[int, int]:
        """All of its processes and when each began."""
        return {pid: process_start_ticks(pid) for pid in _below(self.process.pid)}

    def left_behind(self, processes: dict[int, int]) -> list[str]:
        """Everything of it that is still on the machine; ``processes`` are those it had."""
        deadline = time.monotonic() + GOES_WITHIN_S
        while (found := self._alive(processes)) and time.monotonic() < deadline:
            select.select([], [], [], 0.05)
        mark = kernel_prefix(self.folder)
        found += [f"namespace {path.name}" for path in Path("/run/netns").glob(f"*{mark}*")]
        found += [f"link {path.name}" for path in Path("/sys/class/net").glob(f"*{mark}*")]
        found += [f"mount {path}" for path in cleanup.list_mounts_below(self.home)]
        found += [f"group {path}" for path in cleanup.list_control_groups(self.folder)]
        found += [f"memory {path}" for path in Path("/dev/shm").glob(f"*{mark}*")]
        found += [f"file {path}" for path in self.temporary.iterdir()]
        return found

    def _alive(self, processes: dict[int, int]) -> list[str]:
        known = {pid for pid, began in processes.items() if process_start_ticks(pid) == began != 0}
        return [f"process {pid}" for pid in known | set(running(str(self.folder)))]

    def _read(self, wait_s: float) -> bool:
        readable, _, _ = select.select([self._terminal], [], [], wait_s)
        try:
            text = os.read(self._terminal, 65536) if readable else b""
        except OSError:  # EIO: nobody has the terminal open any more
            text = b""
        self.said += text.decode(errors="replace")
        return bool(text)


@contextmanager
def demo(root: Path, *arguments: str) -> Iterator[Demo]:
    """Run a demo; it is killed at the end if it has not ended."""
    with Demo(root, *arguments) as process:
        yield process


def _below(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _below(child)
