"""An ordinary user of the machine, who looks for a secret in processes and files."""

import asyncio
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECRET = f"hunter2-{secrets.token_hex(8)}"
"""Made for each run: copies of this file are no findings."""

NOBODY = 65534
STARTED_S = time.time() - 1
"""Older files have no secret of this run; to read all of a used machine's /tmp takes minutes."""

SPY = """
import json, os, stat, sys
secret, since, top, watched = json.loads(sys.stdin.readline())
secret = secret.encode()
found, looked = set(), set()
def note(path):
    try:
        with open(path, "rb") as file:
            looked.add(path)
            if secret in file.read():
                found.add(path)
    except OSError:
        pass
def is_new(path, kind):
    try:
        seen = os.stat(path)
    except OSError:
        return False
    return kind(seen.st_mode) and seen.st_ctime >= since
print("ready", flush=True)
import select
asked = False
while not asked:
    asked = bool(select.select([sys.stdin], [], [], 0.02)[0])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        note(f"/proc/{pid}/cmdline")
        note(f"/proc/{pid}/environ")
for base in (top, "/dev/shm", "/tmp"):
    for folder, below, names in os.walk(base):
        for path in (os.path.join(folder, name) for name in names):
            if is_new(path, stat.S_ISREG):
                note(path)
        if folder.count("/") > 1 and base == "/tmp":  # of others: too many to visit
            below[:] = [name for name in below if is_new(os.path.join(folder, name), stat.S_ISDIR)]
print(json.dumps([f"/proc/{watched}/cmdline" in looked, sorted(found)]))
"""
"""Looks at all processes, 50 times a second, until asked for its findings; then at new files."""


class Spy:
    """An ordinary user of the machine, who looks for a text."""

    def __init__(self, secret: str, top: Path) -> None:
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        self._process = subprocess.Popen(
            [*become, "/usr/bin/python3", "-I", "-S", "-c", SPY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([secret, STARTED_S, str(top), os.getpid()]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ready\n"

    async def findings(self) -> list[str]:
        """Paths of the processes and files that contain the text."""
        out, _ = await asyncio.to_thread(self._process.communicate, "\n", 60)
        looked, found = json.loads(out)
        assert looked, "the spy could not look at the processes of others"
        return [str(path) for path in found]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def spy(top: Path, secret: str = SECRET) -> Iterator[Spy]:
    """A spy that looks for a secret in all processes, and in all files below a folder."""
    found = Spy(secret, top)
    try:
        yield found
    finally:
        found.end()
