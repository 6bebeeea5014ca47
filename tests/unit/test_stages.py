"""The stages of the tests: what is due, what fits into the time, and the second chance."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit.tool_modules import load_tool


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with a repository, records and caches of its own."""
    program = load_tool("stages")
    # Other plugins take as long to import as all else that pytest does here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin")
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(program, "RECORDS", tmp_path / "stages.json")
    monkeypatch.setattr(program, "_git_head", lambda: "0" * 40)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "input.txt").write_text("1")
    return program


@pytest.fixture
def run(stages: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the program with some stages as its groups."""

    def main(*arguments: str, **groups: list[Any]) -> int:
        monkeypatch.setattr(stages, "groups", lambda: groups)
        monkeypatch.setattr("sys.argv", ["stages.py", *arguments])
        status: int = stages.main()
        return status

    return main


def test_a_stage_is_due_until_it_passed_with_its_present_inputs(
    stages: Any, run: Callable[..., int], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    stage = stages.Stage("one", f"echo >> {runs}; test -e good", inputs=("*.txt",))
    assert run("due", due=[stage]) == 1
    (tmp_path / "good").touch()
    assert run("due", due=[stage]) == 0
    assert run("due", due=[stage]) == 0
    assert len(runs.read_text()) == 2
    (tmp_path / "input.txt").write_text("2")
    assert run("due", due=[stage]) == 0
    assert len(runs.read_text()) == 3


def test_what_does_not_fit_into_the_time_stays_due_and_fails_nothing(
    stages: Any, run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    long = stages.Stage("long", "echo ran too long", inputs=("*.txt",))
    slow = stages.Stage("slow", "sleep 60", inputs=("*.txt",))
    stages.RECORDS.write_text(json.dumps({"slow": {"inputs": "", "seconds": 1, "tests": 0}}))
    assert run("--minutes", "0.02", "due", due=[long, slow]) == 0
    printed = capfd.readouterr().out
    assert "ran too long" not in printed
    assert re.search("^long .* is due", printed, re.MULTILINE)
    assert re.search("^slow .* is due", printed, re.MULTILINE)


def test_few_failed_tests_run_once_more_alone(
    stages: Any, run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_good(): pass\n"
        "def test_slow():\n"
        "    assert Path('before').exists() or Path('before').touch()\n"
    )
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    ids = "test_it.py::test_slow test_it.py::test_good test_other.py::test_other"
    stage = stages.Stage("tests", tests=f"--numprocesses 2 {ids}")
    assert run("--again", "some", some=[stage]) == 0
    printed = capfd.readouterr().out
    assert "\nonce more, alone, what failed:\ntest_it.py::test_slow\n" in printed
    assert "test_it.py::test_slow PASSED" in printed
    (tmp_path / "before").unlink()
    assert run("some", some=[stage]) == 1


def test_a_stage_beside_others_starts_with_them_and_is_shown_after_them(
    stages: Any, run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    waits = stages.Stage("waits", "until test -e made; do sleep 0.02; done; echo waited")
    makes = stages.Stage("makes", "touch made; echo made; exit 2", beside=True)
    assert run("some", some=[waits, makes]) == 1
    assert re.search(
        r"=== waits\nwaited\n\n=== makes\nmade\n\n\n"
        r"waits .*  passed\nmakes .*  FAILED\n",
        capfd.readouterr().out,
    )
