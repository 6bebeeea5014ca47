"""Spare interpreters: what they preload, and what is learned for the next start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.elastic.agent.learned_modules import LearnedFile
from gangline.elastic.agent.process import HOOK_FOLDER, HOOK_VARIABLE
from gangline.elastic.agent.spare_pool import preloadable_modules
from gangline.elastic.nodecheck.interpreters import imports_torch_first


def test_only_libraries_are_preloaded_in_the_order_of_the_first_start():
    modules = [
        ("__main__", "/work/train.py"),
        ("json", "/usr/lib/python3.11/json/__init__.py"),
        ("sys", None),
        ("model", "/work/model.py"),
        ("torch", "/work/venv/lib/python3.11/site-packages/torch/__init__.py"),
        ("plugin", "/opt/plugins/plugin.py"),
        ("zipped", "archive.zip/zipped.py"),
    ]
    assert preloadable_modules(modules, ["/work"]) == ("json", "torch")


def test_a_spare_whose_hook_fails_does_not_run_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('trained')")
    environment = {"PYTHONPATH": str(HOOK_FOLDER), HOOK_VARIABLE: "spare:987"}  # no such file
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout) == (1, b"")


@pytest.mark.parametrize(
    ("source", "may"),
    [
        pytest.param("import torch", True, id="nothing before"),
        pytest.param("from torch.nn import Linear", True, id="a part of it"),
        pytest.param(
            '"""Trains."""\nimport os, json\nimport torch', True, id="the standard library"
        ),
        pytest.param(
            "from __future__ import annotations\nimport numpy as np\nimport torch.distributed as d",
            True,
            id="numpy",
        ),
        pytest.param("import os, torch", True, id="in one line"),
        pytest.param(
            "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", False, id="set"
        ),
        pytest.param(
            "import warnings\nwarnings.simplefilter('error')\nimport torch", False, id="call"
        ),
        pytest.param("import mine\nimport torch", False, id="another module"),
        pytest.param("from . import mine\nimport torch", False, id="a relative one"),
        pytest.param("try:\n    import torch\nexcept ImportError:\n    pass", False, id="perhaps"),
        pytest.param("def train():\n    import torch", False, id="later"),
        pytest.param("print('no torch')", False, id="never"),
        pytest.param("", False, id="empty"),
        pytest.param("import (", False, id="no Python"),
        pytest.param("\0", False, id="no text"),
    ],
)
def test_script_imports_torch_first(source: str, may: bool) -> None:
    assert imports_torch_first(source.encode()) is may


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
