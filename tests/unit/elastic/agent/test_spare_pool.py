"""Spare interpreters: what they may import, their priority, and a hook that fails."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gangline.elastic.agent import spare_pool
from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.process import HOOK_FOLDER, HOOK_VARIABLE
from gangline.elastic.agent.settings import SpareSettings
from gangline.elastic.agent.spare_pool import may_raise_priority, preloadable_modules
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


@pytest.mark.parametrize(
    ("capabilities", "may"), [("000001ffffffffff", True), ("00000000a80425fb", False)]
)
def test_priority_is_lowered_only_where_it_can_be_raised_again(tmp_path, capabilities, may):
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    assert may_raise_priority(tmp_path / "status") is may


def test_a_spare_whose_hook_fails_does_not_run_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('trained')")
    environment = {"PYTHONPATH": str(HOOK_FOLDER), HOOK_VARIABLE: "spare:987"}  # no such file
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout) == (1, b"")


async def test_fork_has_normal_priority_while_the_server_imports_at_low_priority(
    monkeypatch, tmp_path
):
    settings = SpareSettings(preload=("json",), reserve_bytes=0)
    priorities, importing, done = [], asyncio.Event(), asyncio.Event()
    seen_at_fork = []

    class Server:
        is_alive, process = True, SimpleNamespace(pid=os.getpid())

        async def import_modules(self, modules, changes):
            importing.set()
            await done.wait()
            return {}

        async def fork(self, start, *, reports_imports):
            seen_at_fork.append(priorities[-1])
            return "process", None

        async def end(self): ...

    monkeypatch.setattr(spare_pool.ForkServer, "start", lambda *_: Server())
    monkeypatch.setattr(spare_pool, "_set_priority", lambda pid, nice: priorities.append(nice))
    spares = spare_pool.SparePool(settings, lambda _: ["python"], 1)
    spares.has_learned = True
    spares.fill({0: {}})
    await asyncio.wait_for(importing.wait(), 60)
    files = WorkerFiles(None, None, (), tmp_path / "error.json", tmp_path / "stacks.txt")
    assert await spares.fork(0, {}, files, reports_imports=False) is not None
    assert seen_at_fork == [0]
    assert priorities[-1] > 0, "the imports go on at low priority"
    done.set()
    await spares.close()


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
