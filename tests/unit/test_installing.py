"""The installer: one line for each run of pip, whose output is shown only if it fails."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from unit.tool_modules import TOOLS, load_tool


@pytest.fixture(autouse=True)
def tools_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)


@pytest.fixture
def pip_progress() -> Any:
    return load_tool("pip_progress")


def program(folder: Path, script: str) -> Path:
    """A Python whose pip is a script of the shell."""
    python = folder / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_success_is_one_line_without_the_output_of_pip(
    pip_progress: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = program(tmp_path, "echo Collecting a==1; echo Successfully installed a-1 b-2")
    pip_progress.install(python, "Packages", ["a"], packages=2)
    captured = capsys.readouterr()
    assert captured.out.startswith("Packages ... 2 packages, ")
    assert captured.out.count("\n") == 1
    assert not captured.err


def test_failure_shows_the_command_and_its_output_and_has_its_status(
    pip_progress: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = program(tmp_path, "echo Collecting a; echo ERROR: no such version >&2; exit 3")
    with pytest.raises(SystemExit) as end:
        pip_progress.install(python, "Packages", ["a b"])
    assert end.value.code == 3
    captured = capsys.readouterr()
    assert captured.out == "Packages ... failed\n"
    assert f"$ {python} -m pip" in captured.err
    assert "install 'a b'" in captured.err
    assert "Collecting a\n" in captured.err
    assert "ERROR: no such version" in captured.err


class Terminal(io.StringIO):
    """A terminal; pip goes on when the bar shows what it has fetched."""

    encoding = "utf-8"

    def __init__(self, go: Path) -> None:
        super().__init__()
        self.go = go

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "1 of 4" in text:
            self.go.touch()
        return super().write(text)


def test_terminal_shows_a_bar_and_keeps_one_line(
    pip_progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    terminal = Terminal(go)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(pip_progress, "INTERVAL_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    wait = f"while [ ! -e {go} ]; do sleep 0.01; done"
    said = "echo Collecting a==1; echo 'Processing /a.whl'"
    python = program(tmp_path, f"{said}; {wait}; echo Successfully installed a-1")
    pip_progress.install(python, "Packages", ["a"], packages=4)
    shown = terminal.getvalue()
    assert "Packages  ███░" in shown
    assert shown.count("\n") == 1
    assert shown.rpartition("\x1b[K")[2].startswith("Packages: 1 package, ")


def test_sections_of_the_lock_are_those_that_are_named() -> None:
    install = load_tool("install")
    lock = (
        "# Written by make\n\n# section a\nx==1\n# section b\ny==1 \\\n    --hash=z\n# section c\n"
    )
    assert install.locked_packages(lock, ["a", "c"]).split() == ["x==1"]
    assert "y==1 \\\n    --hash=z\n" in install.locked_packages(lock, ["b"])
    with pytest.raises(SystemExit, match="no section 'd', but a, b, c"):
        install.locked_packages(lock, ["d"])
