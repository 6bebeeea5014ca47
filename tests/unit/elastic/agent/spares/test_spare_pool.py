"""Spare interpreters: what they may import, their priority, and a hook that fails."""

import subprocess
import sys

import pytest

from gangline.elastic.agent.process import HOOK_FOLDER, HOOK_VARIABLE
from gangline.elastic.agent.spares.pool import may_raise_priority, preloadable_modules


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
