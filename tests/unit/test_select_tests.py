"""A source file selects tests that import it, and a documented feature has one in the core."""

from pathlib import Path
from typing import Any

import pytest

from core import CORE
from unit.tool_modules import load_tool

ROOT = Path(__file__).parents[2]
WITHOUT_FEATURE = {
    "architecture", "benchmarks", "benchmarks-appendix", "benchmarks-elastic", "differences",
    "glossary", "plan-published",
}  # fmt: skip
TOOL = load_tool("select_tests")


@pytest.fixture(scope="module")
def reach() -> Any:
    return TOOL.Reach()


def test_every_source_file_selects_a_test_that_imports_it(reach: Any) -> None:
    sources = [file for file in reach.files.values() if file.startswith("src/")]
    assert len(sources) > 500
    assert [file for file in sources if not reach.tests(file)] == []


@pytest.mark.parametrize(
    ("changed", "nearest"),
    [
        ("src/gangline/cli/commands/submit.py", "tests/integration/cli/"),
        ("src/gangline/elastic/master/journal.py", "tests/integration/elastic/master/"),
        ("src/gangline/elastic/forkserver/hook/sitecustomize.py", "tests/integration/elastic/"),
        ("tests/integration/operator/cluster.py", "tests/integration/operator/"),
        ("tests/integration/kubelet/conftest.py", "tests/integration/kubelet/"),
        ("deploy/chart/values.yaml", "tests/integration/deploy/"),
        ("docs/getting-started.md", "tests/integration/docs/"),
    ],
)
def test_the_nearest_tests_come_first(reach: Any, changed: str, nearest: str) -> None:
    assert (ROOT / changed).exists()
    assert reach.select([changed], seconds=15 * TOOL.USUAL_S)[0].startswith(nearest)


def test_every_changed_file_has_its_turn(reach: Any) -> None:
    files = ["src/gangline/kube/client/client.py", "src/gangline/elastic/launcher/main.py"]
    selected = reach.select(files, seconds=1000)
    firsts = [reach.select([file], seconds=1000)[0] for file in files]
    assert sorted(selected[:2]) == sorted(firsts)
    assert sum(map(TOOL.stated_seconds, selected)) <= 1000


def test_every_page_about_a_feature_has_a_journey_in_the_core() -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md") if ".zh" not in path.name}
    assert CORE.keys() == pages - WITHOUT_FEATURE - {"index"}
    for test in (test for shown in CORE.values() for test in shown):
        path, _, case = test.partition("::")
        source = (ROOT / "tests" / path).read_text("utf-8")
        assert not case or f"def {case.partition('[')[0]}(" in source, test
