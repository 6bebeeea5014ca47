"""Runs scripts that play training processes, with shared memory and a folder of their own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Play = Callable[..., Any]


@dataclass(frozen=True)
class Started:
    """A process that runs a script."""

    pid: int
    output: Path
    errors: Path


class Nursery:
    """Runs scripts in forks of one process that has imported PyTorch."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, request: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, folder: Path, script: Path, *arguments: str, **environment: str) -> Started:
        """Start a script; its output is written to files in ``folder``."""
        number = len(list(folder.glob("output-*")))
        output, errors = folder / f"output-{number}", folder / f"errors-{number}"
        output.touch()
        request = {
            "script": str(script),
            "arguments": arguments,
            "environment": {**os.environ, **environment},
            "output": str(output),
            "errors": str(errors),
        }
        return Started(self._ask(request), output, errors)

    def wait(self, started: Started) -> int:
        """Return its exit code, negative if a signal killed it."""
        return self._ask({"wait": started.pid})

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks the others."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in shared memory, in place of the shared memory of one or several nodes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as folder:
        yield Path(folder)


@pytest.fixture
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for output of the processes."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def play(nursery: Nursery, memory: Path, outputs: Path) -> Play:
    """Run a script of this folder and return its JSON output."""

    def run(script: str, *arguments: str) -> Any:
        started = nursery.start(
            outputs, HERE / script, *arguments, GANGLINE_CHECKPOINT_MEMORY=str(memory)
        )
        code = nursery.wait(started)
        assert code == 0, started.errors.read_text()
        return json.loads(started.output.read_text().splitlines()[-1])

    return run
