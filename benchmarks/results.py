"""Results of benchmarks as JSON: what the tables and charts of the documentation are made of.

A benchmark that compares Gangline with peers ends with ``write``, which leaves the figures of this
run in build/benchmarks. The newest published run of each benchmark is in benchmarks/published:

    python -m benchmarks.results NAME ...

publishes the last run and fills the pages. A run that began while the machine had other work is
refused, as its figures would replace better ones.
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

ROOT = Path(__file__).parents[1]
LAST_RUNS = ROOT / "build/benchmarks"
PUBLISHED = Path(__file__).parent / "published"
MOST_LOAD = 0.25
"""Load average for each processor at the start, above which a run is not published."""
LOAD = os.getloadavg()[0]
"""When the benchmark started: its own work does not count."""

Value: TypeAlias = float | tuple[float, float]
"""A median, or the lowest and highest of single runs."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one run has measured of Gangline and, at the same time, of its peers."""

    what: str
    unit: str
    gangline: Value
    peers: dict[str, Value | None] = {}
    """By name; None: the peer never came to an end."""
    higher_is_better: bool = False
    times_faster: dict[str, Value] = {}
    """How many times faster than each peer Gangline is; above 1 it is faster."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one run of a benchmark."""

    benchmark: str
    date: str
    machine: str
    conditions: str
    """Sizes, numbers of runs, and what else a reader must know."""
    versions: dict[str, str]
    """Of Gangline and of everything that it is compared with."""
    load: float | None
    """Load average at the start; None if nothing else ran, in runs from before it was recorded."""
    figures: dict[str, Figure]


def ratio(figure: Figure, peer: Value) -> Value:
    """Return how many times faster than a peer Gangline is, to three digits.

    If one of them is a range, the result is the range of all pairs.
    """
    ours, theirs = figure.gangline, peer
    fast, slow = (ours, theirs) if figure.higher_is_better else (theirs, ours)
    bounds = _bounds(fast)[0] / _bounds(slow)[1], _bounds(fast)[1] / _bounds(slow)[0]
    low, high = (_rounded(bound, 3) for bound in bounds)
    return low if low == high else (low, high)


def complete(run: Run) -> Run:
    """Return a run with rounded values and its ratios."""
    figures = {name: _completed(figure) for name, figure in run.figures.items()}
    return msgspec.structs.replace(run, figures=figures)


def _completed(figure: Figure) -> Figure:
    peers = {
        name: None if value is None or value == float("inf") else _rounded_value(value)
        for name, value in figure.peers.items()
    }
    ours = msgspec.structs.replace(
        figure, gangline=_rounded_value(figure.gangline), peers=peers, times_faster={}
    )
    faster = {
        name: ratio(ours, value)
        for name, value in peers.items()
        if value is not None and min(_bounds(value) + _bounds(ours.gangline)) > 0
    }
    return msgspec.structs.replace(ours, times_faster=faster)


def encode(run: Run) -> str:
    """Return the text of a run's file."""
    return msgspec.json.format(msgspec.json.encode(complete(run)), indent=1).decode() + "\n"


def read(folder: Path = PUBLISHED) -> dict[str, Run]:
    """Return the runs of a folder by the names of their benchmarks."""
    paths = sorted(folder.glob("*.json"))
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Run) for path in paths}


def write(
    benchmark: str,
    conditions: str,
    figures: Mapping[str, Figure],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the figures of the run that ends, with the machine, the date and the versions."""
    own = {"Gangline": importlib.metadata.version("gangline"), "Python": platform.python_version()}
    run = Run(
        benchmark=benchmark,
        date=time.strftime("%Y-%m-%d"),
        machine=machine(),
        conditions=conditions,
        versions=own | dict(versions or {}),
        load=round(LOAD, 1),
        figures=dict(figures),
    )
    path = LAST_RUNS / f"{benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(encode(run), encoding="utf-8")
    print(f"  written: {path.relative_to(ROOT)}", flush=True)


def machine() -> str:
    """Return the processors, memory and system of this machine in words."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, {system}"


def version_of(*command: str | Path) -> str:
    """Return what a program prints as its version, without its name."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[0].split()[-1].removeprefix("v")


def training_versions() -> dict[str, str]:
    """Return the versions of PyTorch and, if ``GANGLINE_DLROVER_PYTHON`` names one, of DLRover."""
    versions = {"PyTorch": importlib.metadata.version("torch")}
    if dlrover := os.environ.get("GANGLINE_DLROVER_PYTHON"):
        show = "import importlib.metadata as m; print(m.version('dlrover'))"
        versions["DLRover"] = version_of(dlrover, "-c", show)
    return versions


def publish(names: Sequence[str]) -> None:
    """Publish the last runs of benchmarks.

    Raises:
        SystemExit: a benchmark has no run, or its machine had other work.
    """
    runs = read(LAST_RUNS)
    for name in names:
        if name not in runs:
            present = ", ".join(runs) or "none"
            raise SystemExit(f"{name}: no run in build/benchmarks; present: {present}")
        most = MOST_LOAD * (os.cpu_count() or 1)
        if (load := runs[name].load or 0) > most:
            raise SystemExit(
                f"{name}: the load average at the start of the run was {load:.1f}; figures are "
                f"published up to {most:g}. Run it again without other load."
            )
    for name in names:
        (PUBLISHED / f"{name}.json").write_text(encode(runs[name]), encoding="utf-8")


def _bounds(value: Value) -> tuple[float, float]:
    return value if isinstance(value, tuple) else (value, value)


def _rounded(number: float, digits: int = 4) -> float:
    return float(f"{number:.{digits}g}")


def _rounded_value(value: Value) -> Value:
    if isinstance(value, tuple):
        return _rounded(value[0]), _rounded(value[1])
    return _rounded(value)


if __name__ == "__main__":
    publish(sys.argv[1:])
    subprocess.run([sys.executable, ROOT / "tools/fill_pages.py"], check=True)
