"""Runs scripts that fork training processes, with shared memory and a folder of their own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Play = Callable[..., Any]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in shared memory, as the whole of a node's or of several."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as folder:
        yield Path(folder)


@pytest.fixture
def play(memory: Path, tmp_path: Path) -> Play:
    """Runs a script of this folder and gives back what it printed, as JSON."""

    def run(script: str, *arguments: str) -> Any:
        environment = os.environ | {"GANGLINE_CHECKPOINT_MEMORY": str(memory)}
        done = subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).parent / script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
