"""Runs DLRover's own interpreter to measure its flash checkpoint, and reads the figures."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

from gangline.elastic.checkpoint.snapshot import directory


class DLRover:
    """DLRover, as installed for the interpreter in ``GANGLINE_DLROVER_PYTHON``."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.place, self._figures = folder / "dlrover", folder / "dlrover.jsonl"
        self._before = _left()

    @classmethod
    def found(cls, folder: Path) -> Self | None:
        """Return the DLRover of the environment; None, with a message, if there is none."""
        if python := os.environ.get("GANGLINE_DLROVER_PYTHON"):
            return cls(python, folder)
        print("  DLRover: not measured; GANGLINE_DLROVER_PYTHON names no interpreter that has it")
        return None

    def measure(self, *arguments: str) -> None:
        """Run DLRover's script with these arguments."""
        what, *more = arguments
        ended = subprocess.run(
            [
                self.python,
                Path(__file__).with_name("dlrover_training.py"),
                what,
                self.place,
                self._figures,
                *more,
            ],
            env=os.environ
            | {"PATH": f"{Path(self.python).parent}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(f"DLRover failed to {what}:\n{ended.stdout[-4000:]}")

    def close(self) -> dict[str, list[Any]]:
        """Remove its files; return its figures by name."""
        found: dict[str, list[Any]] = {}
        for row in map(json.loads, self._figures.read_text().splitlines()):
            for name, value in row.items():
                found.setdefault(name, []).append(value)
        shutil.rmtree(self.place, ignore_errors=True)
        self._figures.unlink()
        for segment in _left() - self._before:
            segment.unlink()
        return found


def _left() -> set[Path]:
    """Shared memory of its jobs, which outlives them."""
    return set(directory.SHARED_MEMORY.glob("standalone_*_ckpt_shm_*"))
