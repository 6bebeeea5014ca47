"""What is kept of a script's imports: for the same script only, and nothing that is broken."""

import json
from pathlib import Path

import pytest

from gangline.elastic.agent.learned_modules import LearnedFile

MODULES = {"json": -1, "torch": 1}
CHANGES = [{"UNUSED": "1"}, {"OMP_NUM_THREADS": "2", "HF_TOKEN": "hf_abc", "PATH": None}]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch")
    return path


def open_file(script: Path, interpreter: str = "python") -> LearnedFile:
    return LearnedFile(
        [interpreter, "-u", str(script), "--lr", "1"], {"XDG_CACHE_HOME": str(script.parent)}
    )


def test_modules_are_kept_for_the_same_script_and_interpreter(script):
    file = open_file(script)
    file.keep(MODULES, CHANGES, {"wandb": "reads RANK"})
    content = open_file(script).content
    assert content.modules == {"json": -1, "torch": 0}
    assert content.changes == [{"OMP_NUM_THREADS": "2", "PATH": None}], "no secret is written"
    assert content.excluded == {"wandb": "reads RANK"}
    assert file.path.stat().st_mode & 0o077 == 0
    assert not open_file(script, "python3.12").content.modules
    script.write_text("import os, torch")
    assert not open_file(script).content.modules


def test_a_script_that_varies_remains_without(script):
    open_file(script).keep_none()
    open_file(script).keep(MODULES, CHANGES, {})
    assert not open_file(script).content.modules


@pytest.mark.parametrize("change", ["", "[]", {"modules": {"torch": 7}}, {"modules": ["torch"]}])
def test_a_broken_file_is_as_good_as_none(script, change):
    file = open_file(script)
    file.keep(MODULES, CHANGES, {})
    text = file.path.read_text()
    file.path.write_text(
        change if isinstance(change, str) else json.dumps({**json.loads(text), **change})
    )
    broken = open_file(script)
    assert not broken.content.modules
    broken.keep(MODULES, CHANGES, {})
    assert open_file(script).content.modules


def test_a_cache_that_cannot_be_written_is_no_error(script):
    (script.parent / "gangline").write_text("no folder")
    open_file(script).keep(MODULES, CHANGES, {})
    assert not open_file(script).content.modules
