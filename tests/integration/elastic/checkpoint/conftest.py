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
    said: Path
    wailed: Path


class Nursery:
    """Has scripts run in forks of one process that has imported PyTorch."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, wish: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(wish) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, folder: Path, script: Path, *arguments: str, **environment: str) -> Started:
        """Run a script; what it prints goes to files in ``folder``."""
        number = len(list(folder.glob("said-*")))
        said, wailed = folder / f"said-{number}", folder / f"wailed-{number}"
        said.touch()
        wish = {
            "script": str(script),
            "arguments": arguments,
            "environment": {**os.environ, **environment},
            "said": str(said),
            "wailed": str(wailed),
        }
        return Started(self._ask(wish), said, wailed)

    def wait(self, started: Started) -> int:
        """Its exit code, less than zero when a signal killed it."""
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
    """A folder in shared memory, as the whole of a node's or of several."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as folder:
        yield Path(folder)


@pytest.fixture
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes' output goes."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def play(nursery: Nursery, memory: Path, outputs: Path) -> Play:
    """Runs a script of this folder and gives back what it printed, as JSON."""

    def run(script: str, *arguments: str) -> Any:
        started = nursery.start(
            outputs, HERE / script, *arguments, GANGLINE_CHECKPOINT_MEMORY=str(memory)
        )
        code = nursery.wait(started)
        assert code == 0, started.wailed.read_text()
        return json.loads(started.said.read_text().splitlines()[-1])

    return run
