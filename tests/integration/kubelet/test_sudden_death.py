"""No process outlives a killed kubelet, with and without root, even if it detaches."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3.11"

HIDING = (
    "import os, subprocess, sys\n"
    "sleep = ['sleep', sys.argv[1]]\n"
    "subprocess.Popen(sleep, start_new_session=True)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execvp('sleep', sleep)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "print('hidden', flush=True)\n"
    "os.execvp('sleep', sleep)\n"
)

KUBELET = """
import asyncio, sys
from pathlib import Path
from gangline.local.kubelet.runtime.interface import ContainerPlan
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime

async def main():
    state = Path(sys.argv[1]); state.mkdir()
    isolation = detect_isolation()
    argv = ("/usr/bin/python3", "-S", "-c", sys.argv[3], sys.argv[2])
    plan = ContainerPlan("u", "d", "p", "c", 0, argv, {"PATH": "/usr/bin:/bin"}, state)
    def show(stream, data): print(isolation.level, data.decode(), flush=True)
    container = await ProcessRuntime(isolation, None).start(plan, show)
    await container.wait()

asyncio.run(main())
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="gangline-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("user", ["own", "nobody"])
def test_no_process_survives_a_kill(user: str, open_folder: Path) -> None:
    tag = f"36{os.getpid()}.{len(user)}"
    script = open_folder / "kubelet.py"
    script.write_text(KUBELET)
    python = sys.executable
    become: dict[str, int] = {}
    if user == "nobody":
        if os.geteuid() != 0:
            pytest.skip("becoming another user needs root")
        if not os.path.exists(SYSTEM_PYTHON):
            pytest.skip(f"needs {SYSTEM_PYTHON}, which every user can run")
        python, become = SYSTEM_PYTHON, {"user": NOBODY, "group": NOBODY}
    kubelet = subprocess.Popen(
        [python, str(script), str(open_folder / "state"), tag, HIDING],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        **become,
    )
    assert kubelet.stdout is not None
    level, _, word = kubelet.stdout.readline().strip().partition(" ")
    try:
        assert word == "hidden"
        assert level == ("user" if user == "nobody" or os.geteuid() else "root")
        assert how_many(tag, 3) == 3
    finally:
        kubelet.send_signal(signal.SIGKILL)
        kubelet.wait()
        kubelet.stdout.close()
    assert how_many(tag, 0) == 0


def how_many(tag: str, wanted: int) -> int:
    """How many there are, once they are as many as wanted or two seconds have passed."""
    deadline = time.monotonic() + 2
    while len(sleepers(tag)) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(sleepers(tag))


def sleepers(tag: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes() == f"sleep\0{tag}\0".encode():
                found.append(int(entry.name))
    return found
