"""The commands of README and Getting Started run as they are printed, in their order."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.documented_commands import ROOT, shell_lines

SETS_UP = re.compile(r"^(make|git|\. )")
OUTPUT = re.compile(r"^( |The job |helm )")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


def commands(page: Path) -> list[str]:
    """What a reader types, without the set-up of the environment and without printed output."""
    lines = [line for line in shell_lines(page) if line and not OUTPUT.match(line)]
    return [line for line in lines if not SETS_UP.match(line)]


def run(lines: list[str], home: Path) -> str:
    """Run lines in one shell that ends at the first failure; return what it printed."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": tools, "PWD": str(ROOT), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-exc", "\n".join(lines)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    subprocess.run(["gangline", "down"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("page", "number", "ranks"),
    [("README.md", 7, (0,)), ("docs/getting-started.md", 13, (0, 1, 2))],
    ids=str,
)
def test_commands_run_as_printed(
    page: str, number: int, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    lines = commands(ROOT / page)
    assert len(lines) >= number, lines
    printed = run(lines, tmp_path)
    for rank in ranks:
        assert f"rank {rank} of 3: the sum is 3" in printed


def test_example_of_the_python_page_runs_as_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
    (tmp_path / "example.py").write_text(text.split("```python\n")[1].split("```")[0])
    expected = re.findall(r"^    (\S+-\d rank .*|0\.6\d+)$", text, re.MULTILINE)
    lines = ["gangline up --detach", f"cd {tmp_path}", "export KUBECONFIG=~/.gangline/kubeconfig"]
    printed = run([*lines, "python example.py"], tmp_path)
    assert len(expected) == 4
    assert all(f"\n{line}\n" in printed for line in expected), printed
