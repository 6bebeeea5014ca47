"""Figures of pages and charts are those of the files that scripts write."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import results

from unit.tool_modules import load_tool

RUN = results.Run(
    benchmark="speed",
    date="2026-01-02",
    machine="2 cores",
    conditions="three runs",
    versions={"peer": "1.0"},
    load=0.1,
    figures={
        "short": results.Figure("a short one", "s", 0.5, {"peer": 2.0, "never ends": None}),
        "rate": results.Figure("a rate", "pods/s", (10, 30), {"peer": (5, 6)}, True),
    },
)


@pytest.fixture
def tool() -> Any:
    return load_tool("fill_pages")


def test_pages_and_charts_are_current(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code = tool.main(["--check"])
    assert code == 0, capsys.readouterr().out


def test_published_runs_are_as_benchmarks_write_them() -> None:
    """Ratios follow from the values, so neither is changed alone."""
    for name, run in results.read().items():
        path = results.PUBLISHED / f"{name}.json"
        assert path.read_text(encoding="utf-8") == results.encode(run)
        assert run.benchmark == name


def test_ratio_says_how_many_times_faster_gangline_is() -> None:
    figures = results.complete(RUN).figures
    assert figures["short"].times_faster == {"peer": 4.0}
    assert figures["rate"].times_faster == {"peer": (1.67, 6.0)}


@pytest.fixture
def last_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of last runs, beside which that of published ones is empty."""
    for name in ("LAST_RUNS", "PUBLISHED"):
        monkeypatch.setattr(results, name, tmp_path / name)
        (tmp_path / name).mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path / "LAST_RUNS"


def test_run_of_a_quiet_machine_is_published(
    last_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOAD", 0.0)
    results.write("speed", RUN.conditions, RUN.figures, RUN.versions)
    results.publish(["speed"])
    (run,) = results.read(results.PUBLISHED).values()
    assert run.figures == results.complete(RUN).figures
    assert run.versions["peer"] == "1.0"
    assert {"Gangline", "Python"} <= run.versions.keys()


@pytest.mark.parametrize(("name", "reason"), [("speed", "load average"), ("other", "no run")])
def test_run_of_a_busy_machine_or_none_is_refused(
    last_run: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setattr(results, "LOAD", 1000.0)
    results.write("speed", RUN.conditions, RUN.figures)
    with pytest.raises(SystemExit, match=f"{name}: .*{reason}"):
        results.publish([name])
    assert not any(results.PUBLISHED.iterdir())


@pytest.fixture
def sources(tool: Any) -> Any:
    figures = {"demo": {"total_s": 11.7, "report": ["a", "b"]},
               "setup": {"download_mb": 312, "disk_mb": 1312, "long_s": 150}}  # fmt: skip
    shown = tool.Selection(headline=[], chart={}, project={})
    return tool.Sources(shown, {"speed": results.complete(RUN)}, figures)


@pytest.mark.parametrize(
    ("words", "page", "expected"),
    [
        ("figure demo.total_s", "a.md", "11.7 s"),
        ("figure demo.total_s", "a.zh.md", "11.7 秒"),
        ("figure setup.long_s", "a.md", "2.5 minutes"),
        ("figure setup.download_mb", "a.md", "310 MB"),
        ("figure setup.disk_mb", "a.md", "1.3 GB"),
        ("printed demo.report", "a.md", "\n\n```text\na\nb\n```\n\n"),
    ],
)
def test_figure_is_filled_in(tool: Any, sources: Any, words: str, page: str, expected: str) -> None:
    text = f"It is <!-- from: {words} -->old<!-- end -->."
    assert tool.fill(text, page, sources) == text.replace("old", expected)


def test_results_of_a_benchmark_have_machine_date_versions_and_ratios(
    tool: Any, sources: Any
) -> None:
    text = tool.fill("<!-- from: results speed --><!-- end -->", "a.md", sources)
    text = text.replace(tool.NO_BREAK, " ")
    assert "2026-01-02, 2 cores; peer 1.0. three runs" in text
    assert "| a short one | 0.5 s | peer 2 s, never ends never | 4.0 |" in text
    assert "| a rate | 10 to 30 pods/s | peer 5 to 6 pods/s | 1.7 to 6.0 |" in text


@pytest.mark.parametrize(
    "text",
    ["<!-- from: figure demo.none --><!-- end -->", "<!-- from: nothing --><!-- end -->",
     "<!-- from: figure --><!-- end -->", "<!-- from: figure demo.total_s -->"],
)  # fmt: skip
def test_remark_that_cannot_be_filled_is_an_error_with_its_page(
    tool: Any, sources: Any, text: str
) -> None:
    with pytest.raises(ValueError, match=r"page\.md: "):
        tool.fill(text, "page.md", sources)


def test_demo_report_has_its_figures() -> None:
    tool = load_tool("measure_figures")
    report = json.loads(tool.fill_pages.FIGURES.read_text(encoding="utf-8"))["demo"]["report"]
    figures = tool.report_of(["$ gangline demo", "total of nothing", "", *report])
    assert figures["report"] == report
    assert str(figures["total_s"]) in report[-1]
    with pytest.raises(ValueError, match="The job succeeded"):
        tool.report_of(report[1:])
    with pytest.raises(ValueError, match="recovery"):
        tool.report_of([line for line in report if "recovery" not in line])
