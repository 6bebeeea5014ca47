"""Fixtures that run the launcher as users do: as a program, with scripts of the test's own.

``GANGLINE_TEST_PYTHON`` names another interpreter for it, to try other releases of PyTorch:

    python3.11 -m venv old && old/bin/pip install torch==2.6.0 numpy
    old/bin/pip install . && GANGLINE_TEST_PYTHON=$PWD/old/bin/python pytest THIS_FOLDER
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

PATIENCE_S = 280.0
PYTHON = os.environ.get("GANGLINE_TEST_PYTHON", sys.executable)
PR_SET_PDEATHSIG = 1


class Run:
    """A launcher that runs; its output is collected while it does. It ends with this process."""

    def __init__(self, arguments: list[str], folder: Path, **environment: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "PYTEST"))}
        self.process = subprocess.Popen(
            arguments,
            cwd=folder,
            env={**inherited, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
            | {"XDG_CACHE_HOME": str(folder / "cache"), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def until(self, text: str, times: int = 1) -> None:
        """Wait until the output contains a text ``times`` times."""
        deadline = time.monotonic() + PATIENCE_S
        with self._more:
            while self.output.count(text) < times:
                left = deadline - time.monotonic()
                assert left > 0, f"no {text!r} in:\n{self.output}"
                assert self._reader.is_alive() or self.output.count(text) >= times, self.output
                self._more.wait(min(left, 0.5))

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a training script."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def torch_that_waits(tmp_path: Path) -> None:
    """A package whose frames count as waiting for other ranks."""
    library = tmp_path / "torch" / "distributed"
    library.mkdir(parents=True)
    (library.parent / "__init__.py").write_text("")
    (library / "__init__.py").write_text("")
    (library / "wait.py").write_text("import time\ndef barrier():\n    time.sleep(1000)\n")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start ``gangline run``; processes that still run at the end of the test are killed."""
    runs: list[Run] = []

    def start(*arguments: object, program: str = "gangline", **environment: str) -> Run:
        commands = {
            "gangline": [PYTHON, "-m", "gangline.elastic.launcher"],
            "torchrun": [PYTHON, "-m", "torch.distributed.run"],
            "master": [PYTHON, "-m", "gangline.elastic.master"],
        }
        run = Run([*commands[program], *map(str, arguments)], tmp_path, **environment)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.kill()
    for run in runs:
        run.end()
