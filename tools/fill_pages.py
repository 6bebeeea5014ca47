"""Fills the figures of the documentation into its pages, and draws its charts.

python tools/fill_pages.py [--check]

Figures come from files that scripts write: benchmarks/published/*.json, by the benchmarks, and
docs/figures.json, by tools/measure_figures.py. A page has them between two remarks, which readers
do not see:

    <!-- from: figure demo.recovery_s -->0.6 s<!-- end -->

Other words behind ``from:`` are the functions in ``FILLERS``. The text between the remarks is
overwritten. ``--check`` writes nothing, and exits with 1 if a page or a chart is not current.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
sys.path[:0] = [str(ROOT), str(TOOLS)]
import draw_charts  # noqa: E402
from benchmarks.results import Figure, Run, Value, read  # noqa: E402

FIGURES = ROOT / "docs/figures.json"
IMAGES = ROOT / "docs/images"
CHINESE = ".zh.md"
NO_BREAK = "\N{NO-BREAK SPACE}"
"""Between a number and its unit: cells of tables are narrow."""
_MARKED = re.compile(r"(<!-- from: ([^>]*?) -->)(.*?)(<!-- end -->)", re.DOTALL)


class Headline(msgspec.Struct, forbid_unknown_fields=True):
    """A comparison that the first table of the benchmarks shows."""

    text: str
    benchmark: str
    figure: str
    """The start of the figure's name; the last of several is shown."""
    peers: list[str]
    chinese: str = ""


class Chart(msgspec.Struct, forbid_unknown_fields=True):
    """An image of figures of benchmarks."""

    title: str
    better: str
    figures: list[tuple[str, str]]
    """Benchmarks, and starts of the names of their figures."""


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """What of the benchmarks is shown: tools/benchmark_pages.toml."""

    headline: list[Headline]
    chart: dict[str, Chart]
    project: dict[str, str]


class Sources(NamedTuple):
    """What pages are filled from."""

    shown: Selection
    runs: dict[str, Run]
    figures: dict[str, dict[str, Any]]


def read_sources() -> Sources:
    """Return all figures."""
    shown = tomllib.loads((TOOLS / "benchmark_pages.toml").read_text(encoding="utf-8"))
    return Sources(
        msgspec.convert(shown, Selection), read(), json.loads(FIGURES.read_text(encoding="utf-8"))
    )


def fill(text: str, page: str, sources: Sources) -> str:
    """Return a page with current figures.

    Raises:
        ValueError: a remark of the page is not closed, or names nothing that can be filled in.
    """

    def filled(found: re.Match[str]) -> str:
        kind, *arguments = found[2].split()
        try:
            content = FILLERS[kind](sources, page.endswith(CHINESE), *arguments)
        except (KeyError, TypeError, StopIteration) as error:
            raise ValueError(f"{page}: nothing to fill in for {found[1]}: {error!r}") from error
        return f"{found[1]}{content}{found[4]}"

    if text.count("<!-- from:") != len(_MARKED.findall(text)):
        raise ValueError(f"{page}: a remark `<!-- from: … -->` has no `<!-- end -->`")
    return _MARKED.sub(filled, text)


def figure(sources: Sources, is_chinese: bool, name: str) -> str:
    """Return a figure of docs/figures.json, by SECTION.NAME, with its unit."""
    section, _, key = name.partition(".")
    value = sources.figures[section][key]
    if key.endswith("_mb"):
        size, unit = (value, "MB") if value < 1000 else (value / 1000, "GB")
        return f"{float(f'{size:.2g}'):g} {unit}"
    if key.endswith("_s"):
        return duration(value, is_chinese)
    return f"{value:,}" if isinstance(value, int) else str(value)


def duration(seconds: float, is_chinese: bool) -> str:
    """Return a duration as people state it."""
    for size, unit, chinese in ((5400, "hours", "小时"), (90, "minutes", "分钟")):
        if seconds >= size:
            number = round(seconds / {5400: 3600, 90: 60}[size] * 2) / 2
            return f"{number:g} {chinese if is_chinese else unit}"
    return f"{seconds:g} {'秒' if is_chinese else 's'}"


def printed(sources: Sources, is_chinese: bool, name: str) -> str:
    """Return lines of docs/figures.json as a block of printed text."""
    section, _, key = name.partition(".")
    lines = "\n".join(sources.figures[section][key])
    return f"\n\n```text\n{lines}\n```\n\n"


def numbers(sources: Sources, is_chinese: bool) -> str:
    """Return the table of the first page: the first three headlines."""
    first = ("", "速度", "Gangline", "同类") if is_chinese else (
        "", "times faster than", "Gangline", "others")  # fmt: skip
    rows = [_headline(sources, line, is_chinese) for line in sources.shown.headline[:3]]
    return _table(first, rows)


def headlines(sources: Sources, _: bool) -> str:
    """Return the table of all headlines."""
    rows = []
    for line in sources.shown.headline:
        run = sources.runs[line.benchmark]
        projects = dict.fromkeys(sources.shown.project.get(peer, peer) for peer in line.peers)
        versions = [f"{name} {run.versions[name]}" for name in projects if name in run.versions]
        about = ", ".join((run.date, run.machine, *versions))
        rows.append((*_headline(sources, line, is_chinese=False), about))
    return _table(("", "times faster than", "Gangline", "others", "measured"), rows)


def _headline(sources: Sources, line: Headline, is_chinese: bool) -> tuple[str, ...]:
    shown = find(sources.runs, line.benchmark, line.figure)
    peers = [name for name in line.peers if name in shown.times_faster]
    faster = [times(shown.times_faster[name], is_chinese) for name in peers]
    ratios = zip(peers, faster, strict=True)
    return (
        line.chinese if is_chinese else line.text,
        "、".join(f"{name} 的 **{ratio}** 倍" for name, ratio in ratios)
        if is_chinese
        else ", ".join(f"{name} **{ratio}**" for name, ratio in ratios),
        value(shown.gangline, shown.unit, is_chinese),
        ("、" if is_chinese else ", ").join(_peer(name, shown, is_chinese) for name in peers),
    )


def results(sources: Sources, _: bool, benchmark: str) -> str:
    """Return the conditions of a benchmark's newest run, and all of its figures."""
    run = sources.runs[benchmark]
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    about = f"`{benchmark}`, {run.date}, {run.machine}; {versions}. {run.conditions}:"
    rows = [
        (
            shown.what,
            value(shown.gangline, shown.unit),
            ", ".join(_peer(name, shown) for name in shown.peers),
            ", ".join(times(ratio) for ratio in shown.times_faster.values()),
        )
        for shown in run.figures.values()
    ]
    return f"\n\n{about}{_table(('what', 'Gangline', 'peers', 'times faster'), rows)}"


FILLERS: dict[str, Callable[..., str]] = {
    "figure": figure, "printed": printed, "numbers": numbers, "headlines": headlines,
    "results": results,
}  # fmt: skip


def find(runs: dict[str, Run], benchmark: str, start: str) -> Figure:
    """Return the last figure of a benchmark whose name starts like this."""
    found = runs[benchmark].figures
    return next(found[name] for name in reversed(found) if name.startswith(start))


def value(value: Value, unit: str, is_chinese: bool = False) -> str:
    """Return a value with its unit."""
    unit = {"s": "秒", "pods/s": "个/秒"}.get(unit, unit) if is_chinese else unit
    number = _number(value, lambda number: f"{number:,.4g}", is_chinese)
    return f"{number} {unit}".replace(" ", NO_BREAK)


def times(ratio: Value, is_chinese: bool = False) -> str:
    """Return a ratio with the digits that are worth something."""
    return _number(ratio, _short, is_chinese)


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.{1 if number >= 0.95 else 2}f}"


def _number(value: Value, shown: Callable[[float], str], is_chinese: bool) -> str:
    if isinstance(value, tuple):
        return f"{shown(value[0])}{' 到 ' if is_chinese else ' to '}{shown(value[1])}"
    return shown(value)


def _peer(name: str, shown: Figure, is_chinese: bool = False) -> str:
    taken = shown.peers[name]
    return f"{name} {'never' if taken is None else value(taken, shown.unit, is_chinese)}"


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = list(titles)
    lines = [first, ["---"] * len(first), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n\n"


def charts(sources: Sources) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each chart."""
    for name, chart in sources.shown.chart.items():
        groups, measured = [], dict[str, None]()
        for benchmark, start in chart.figures:
            run = sources.runs[benchmark]
            measured[f"{run.date}, {run.machine}"] = None
            for key, shown in run.figures.items():
                if key.startswith(start):
                    groups.append((shown.what, _bars(shown)))
        note = f"{chart.better} Measured {'; '.join(measured)}"
        yield IMAGES / f"{name}.svg", draw_charts.draw(draw_charts.Chart(chart.title, note, groups))


def _bars(shown: Figure) -> dict[str, draw_charts.Bar]:
    measured = {draw_charts.OURS: shown.gangline, **shown.peers}
    return {
        name: draw_charts.Bar(*(taken if isinstance(taken, tuple) else (taken, taken)),
                              value(taken, shown.unit))
        for name, taken in measured.items()
        if taken is not None
    }  # fmt: skip


def pages() -> list[Path]:
    """Return the pages that may have figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: list[str]) -> int:
    """Fill all pages and draw all charts, or check them; return the exit code."""
    sources, stale = read_sources(), []
    current = dict(charts(sources))
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if "<!-- from:" in text:
            current[page] = fill(text, str(page.relative_to(ROOT)), sources)
    for path, text in current.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale:
        done = "not current; run tools/fill_pages.py" if "--check" in arguments else "written"
        sys.stdout.write(f"{done}: {', '.join(stale)}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
