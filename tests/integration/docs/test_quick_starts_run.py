"""The commands of README, Getting Started and the guides run as printed, in their order.

Takes 40 s: the jobs of the pages are trained as printed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.documented_commands import ROOT, executed_commands, first_block
from unit.docs.guides import executed_guides

NUMBERS = re.compile(r"\d+(\.\d+)*[a-z%]*")
UP = ("gangline up --detach", "export KUBECONFIG=~/.gangline/kubeconfig")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


def run(lines: list[str], home: Path, folder: Path = ROOT) -> str:
    """Run lines in one shell that ends at the first failure; return what it printed."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": tools, "PWD": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-exc", "\n".join(lines)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    subprocess.run(["gangline", "down"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("place", ["checkout", "below-tmp"])
def test_commands_run_as_printed_one_page_after_the_other(place: str, tmp_path: Path) -> None:
    """A newcomer types those of README, then those of Getting Started, on the same machine.

    Pods have a /tmp of their own, and no user but root may enter /root.
    """
    clone = ROOT
    if place == "below-tmp":
        clone = tmp_path / "a clone"
        shutil.copytree(ROOT / "examples", clone / "examples")
    for page, number, ranks in (("README.md", 8, (0,)), ("docs/getting-started.md", 13, range(3))):
        lines = executed_commands(ROOT / page)
        assert len(lines) >= number, lines
        printed = run(lines, tmp_path, clone)
        for rank in ranks:
            assert f"rank {rank} of 3: the sum is 3" in printed


def python_example() -> tuple[str, list[str]]:
    """The program of the page about Python, and the four lines that it prints."""
    text = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
    expected = re.findall(r"^(\S+-\d rank .*|0\.6\d+)$", text, re.MULTILINE)
    assert len(expected) == 4
    return text.split("```python\n")[1].split("```")[0], expected


def test_example_of_the_python_page_runs_as_printed(tmp_path: Path) -> None:
    example, expected = python_example()
    (tmp_path / "example.py").write_text(example)
    printed = run([*UP, f"cd {tmp_path}", "python example.py"], tmp_path)
    assert all(f"\n{line}\n" in printed for line in expected), printed


def test_example_of_the_python_page_runs_in_jupyter(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="Jupyter is not installed")
    example, _ = python_example()
    functions, _, job = example.partition("\n\n\nclient = ")
    cells = [nbformat.v4.new_code_cell(source) for source in (functions, f"client = {job}")]
    notebook = tmp_path / "example.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    run([*UP, f"cd {tmp_path}", f"jupyter execute --inplace {notebook.name}"], tmp_path)
    outputs = nbformat.read(notebook, nbformat.NO_CONVERT).cells[1].outputs
    printed = "".join(each.text for each in outputs if each.output_type == "stream")
    assert sorted(printed.splitlines()) == sorted(python_example()[1])
    assert any("text/html" in each.get("data", {}) for each in outputs), outputs


def without_numbers(line: str) -> str:
    """A line whose times, addresses and spaces between columns may differ."""
    return " ".join(NUMBERS.sub("#", line).split())


@pytest.mark.parametrize(
    "page", ["data-sharding", "diagnose", "elastic-trainer", "restarts", "scheduled-jobs"]
)
def test_how_to_guide_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    path = ROOT / f"docs/{page}.md"
    printed = run(first_block(path), tmp_path)
    # Ranks share the output: two that print at once can end up on one line.
    found = "\n".join(without_numbers(line) for line in printed.splitlines())
    shown = "".join(re.findall(r"```text\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
    missing = [line for line in shown.splitlines() if without_numbers(line) not in found]
    assert shown.strip()
    assert not missing, f"{missing}\n{printed}"


@pytest.mark.timeout(600)
def test_guides_for_people_of_other_tools_run_and_print_what_they_show(tmp_path: Path) -> None:
    pages = executed_guides()
    typed = [line for page in pages for line in first_block(page)]
    printed = run([*UP, *(line for line in typed if line not in UP)], tmp_path)
    found = {without_numbers(line) for line in printed.splitlines()}
    for page in pages:
        (shown,) = re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        missing = {line for line in shown.splitlines() if without_numbers(line) not in found}
        assert not missing, f"{page.name}: {missing}\n{printed}"
