"""What a terminal shows of real pods while their job is followed."""

import asyncio
import os
import pty
import shlex
import subprocess
import sys
import termios

import pytest

from integration.cluster.embedded import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = """
import os, sys, time
print("begins", flush=True)
for step in range(1000):
    sys.stderr.write(f"\\r{step} of 1000 |##")
    sys.stderr.flush()
    if os.path.exists("/tmp/end"):
        sys.exit(0)
    if os.path.exists("/tmp/kill"):
        os.remove("/tmp/kill")
        os.kill(os.getpid(), 9)
    time.sleep(0.05)
"""
WAITS_S = 90.0


class Terminal:
    """A command on a pseudo-terminal, and everything that it has written."""

    def __init__(self, cluster: EmbeddedCluster, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 120))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gangline", *args],
            env=cluster.environment | {"TERM": "xterm-256color"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.written = b""
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        self._changed = asyncio.Event()

    def _read(self) -> None:
        try:
            self.written += os.read(self._ours, 1 << 16)
        except OSError:  # the command has ended
            asyncio.get_running_loop().remove_reader(self._ours)
        self._changed.set()

    async def shows(self, text: str, after: int = 0) -> int:
        """Wait until a text has been written; return where it ends."""
        while (at := self.written.find(text.encode(), after)) < 0:
            await self._changed.wait()
            self._changed.clear()
        return at + len(text)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def touch(cluster: EmbeddedCluster, replica: str, path: str) -> bool:
    return cluster.run("exec", "alive", "-i", replica, "--", "touch", path).returncode == 0


async def test_status_goes_on_below_lines_and_bars_and_a_kill_is_one_line(
    shared_cluster: EmbeddedCluster,
) -> None:
    command = f"python -u -c {shlex.quote(SCRIPT)}"
    terminal = Terminal(
        shared_cluster, "submit", "pytorch", "--name", "alive", "--image", "any", "--cpu", "200m",
        "--share-memory", "0", "--workers", "2", "--retry", "2", "--no-check", "--logs", command,
    )  # fmt: skip
    try:
        async with asyncio.timeout(WAITS_S):
            at = await terminal.shows("[worker-0] \x1b[0mbegins")
            at = await terminal.shows("of 1000 |##", at)
            at = await terminal.shows("alive runs: 2 of 2 replicas", at)
            assert touch(shared_cluster, "worker-0", "/tmp/kill")
            at = await terminal.shows("worker-0 was killed (SIGKILL)", at)
            begins = terminal.written.rindex(b"worker-0 was killed", 0, at)
            at = await terminal.shows("of 1000 |##", at)
            assert touch(shared_cluster, "master-0", "/tmp/end")
            assert touch(shared_cluster, "worker-0", "/tmp/end")
            await terminal.shows("has succeeded", at)
    finally:
        terminal.close()
        shared_cluster.run("delete", "alive")
    # Before the message the rows of the status are erased, and nothing else is on its row.
    assert terminal.written[:begins].endswith((b"\n", b"\x1b[2K"))
