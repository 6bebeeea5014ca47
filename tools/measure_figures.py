"""Measures figures of the documentation, writes docs/figures.json, and fills the pages.

python tools/measure_figures.py demo         # and records it: docs/images/demo.svg
python tools/measure_figures.py downloads    # of `make demo`, in a new virtual environment
python tools/measure_figures.py make TARGET ...
python tools/measure_figures.py environments # sizes of those that `make test-frameworks` has made
python tools/measure_figures.py tutorial     # reading time, number of commands that tests run

Times are measured on a machine without other load only; otherwise the program says so and ends.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
sys.path[:0] = [str(ROOT), str(TOOLS)]
import fill_pages  # noqa: E402
import framework_environments  # noqa: E402
import install_torch  # noqa: E402
import record_demo  # noqa: E402
from benchmarks import results  # noqa: E402

Figures = dict[str, Any]
DEMO = ("gangline", "demo")
RESULT = "The job succeeded"
"""The first words of the demo's report."""
REPORTED = {
    "accuracy": "test accuracy",
    "start_s": "cluster start",
    "first_step_s": "submission to the first step",
    "recovery_s": "recovery, kill to the next step",
    "total_s": "total",
}
"""Figures of the report by the beginnings of their lines."""
WORDS_PER_MINUTE = 200
"""Silent reading of technical text; lines to type and their output count too."""
TUTORIAL = ROOT / "docs/getting-started.md"


def require_quiet() -> None:
    """End if the machine has other work.

    Raises:
        SystemExit: it has.
    """
    load, most = os.getloadavg()[0], results.MOST_LOAD * (os.cpu_count() or 1)
    if load > most:
        raise SystemExit(f"the load average is {load:.1f}; times are measured up to {most:g}")


def save(section: str, measured: Figures) -> None:
    """Add figures to a section of the file, with the date and the machine."""
    path = fill_pages.FIGURES
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    about = {"measured": f"{time.strftime('%Y-%m-%d')}, {results.machine()}"}
    figures[section] = figures.get(section, {}) | measured | about
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def report_of(lines: Sequence[str]) -> Figures:
    """Return the figures of the demo's report, and its lines.

    Raises:
        ValueError: the report, or a figure in it, is missing.
    """
    starts = [number for number, line in enumerate(lines) if line.startswith(RESULT)]
    if not starts:
        raise ValueError(f"no line of the demo begins with {RESULT!r}")
    report = [line.rstrip() for line in lines[starts[0] :] if line.strip()]
    figures: Figures = {"report": report}
    for name, text in REPORTED.items():
        found = [re.search(r"([\d.]+)(?: s)?$", line) for line in report if text in line[:40]]
        if not (found and found[-1]):
            raise ValueError(f"the demo's report has no {text!r}: {report}")
        figures[name] = float(found[-1][1])
    return figures


def measure_demo() -> None:
    """Run the demo; write its recording and its figures."""
    require_quiet()
    lines = list(record_demo.record(DEMO))
    save("demo", report_of([text.plain for _, text in lines]))
    record_demo.write(lines, shlex.join(DEMO))


def measure_downloads() -> None:
    """Set up what `make demo` needs in a new environment; sum what is fetched and installed."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (torch,) = re.findall(
        r'^demo = .*"(torch==[^"]*)"', (ROOT / "pyproject.toml").read_text(), re.M
    )
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "demo.txt")
        requirements.write_text(pinned.partition("# section dev")[0], encoding="utf-8")
        needed = ["--no-deps", "--require-hashes", "--requirement", str(requirements)]
        options = install_torch.index_options(install_torch.CPU_INDEX)
        files = {
            package["metadata"]["name"].lower(): package["download_info"]["url"]
            for arguments in (needed, [*options, torch])
            for package in install_torch.packages_to_fetch(["--ignore-installed", *arguments])
        }
        command = ["make", f"VENV={folder}/venv", f"{folder}/venv/.demo"]
        subprocess.run(command, cwd=ROOT, check=True)
        figures = {
            "download_mb": round(sum(map(install_torch.size, files.values())) / 1e6),
            "disk_mb": size_mb(f"{folder}/venv"),
        }
    is_cuda = any(name.startswith("nvidia-") for name in files)
    save(f"setup_{'cuda' if is_cuda else 'cpu'}", figures)


def size_mb(folder: str) -> float:
    """Return the size of a folder on the disk, in megabytes."""
    shown = subprocess.run(["du", "-s", "-B1", folder], capture_output=True, text=True, check=True)
    return round(int(shown.stdout.split()[0]) / 1e6)


def measure_make(targets: Sequence[str]) -> None:
    """Run targets of the Makefile, `setup` in a new environment; `ci-run` is .ci/run."""
    require_quiet()
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            environment = [f"VENV={folder}/venv"] if target == "setup" else []
            command = [".ci/run"] if target == "ci-run" else ["make", *environment, target]
            begun = time.monotonic()
            subprocess.run(command, cwd=ROOT, check=True)
            save("make", {f"{target.replace('-', '_')}_s": round(time.monotonic() - begun)})


def measure_environments() -> None:
    """Measure the environments of frameworks that are on this machine."""
    folders = {
        name: framework_environments.folder_of(name)
        for name, has_own in framework_environments.examples().items()
        if has_own
    }
    made = {f"{name}_mb": size_mb(str(path)) for name, path in folders.items() if path.exists()}
    if not made:
        raise SystemExit("no environment is there; `make test-frameworks` makes them")
    save("environments", made)


def words(page: Path) -> int:
    """Count the words of a page, without the addresses of links."""
    return len(re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8")).split())


def measure_tutorial() -> None:
    """Count the words of the tutorial, and the documented commands that tests run."""
    sys.path.insert(0, str(ROOT / "tests"))
    from unit.cli.documented_commands import executed_commands, first_block
    from unit.docs.guides import executed_guides

    executed = sum(len(executed_commands(page)) for page in (ROOT / "README.md", TUTORIAL))
    executed += sum(len(first_block(page)) for page in executed_guides())
    reading_s = round(words(TUTORIAL) / WORDS_PER_MINUTE * 60)
    save("tutorial", {"reading_s": reading_s, "tested_commands": executed})


MEASURES: dict[str, Callable[[], None]] = {
    "demo": measure_demo,
    "downloads": measure_downloads,
    "environments": measure_environments,
    "tutorial": measure_tutorial,
}


def main(arguments: Sequence[str]) -> int:
    """Measure what the arguments name; return the exit code."""
    match arguments:
        case ["make", _, *_]:
            measure_make(arguments[1:])
        case [name] if name in MEASURES:
            MEASURES[name]()
        case _:
            sys.exit(__doc__)
    return fill_pages.main([])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
