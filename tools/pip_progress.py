"""Runs pip and shows one line for it: a bar on a terminal, else what is done and how it ended.

pip's own output is shown only if it fails. Needs nothing but the standard library, because it runs
before any package is installed.
"""

from __future__ import annotations  # so that an old Python reaches the version check

# so that an old Python reaches the version check of bootstrap.py
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

BAR_WIDTH = 24
INTERVAL_S = 0.2
_FETCHED = re.compile(
    r"Collecting |Ignoring |Requirement already satisfied|Processing .*\(from -r "
)
"""A line for each package; a file that is on disk has one if no index was searched for it."""
_INSTALLED = re.compile(r"^Successfully installed (.*)$", re.MULTILINE)
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class PipRun:
    """One run of pip, whose output a thread reads."""

    def __init__(
        self, python: pathlib.Path, arguments: list[str], packages: int, size: int
    ) -> None:
        self.packages = packages
        """Number of packages that pip looks at."""
        self.size = size
        """Bytes to fetch; 0 if unknown."""
        self.command = [str(python), *_PIP, "install", *arguments]
        self.output: list[str] = []
        self._site = python.parent.parent / "lib"
        self._present = self._installed()
        self._fetched = 0
        self._temporary = tempfile.TemporaryDirectory(prefix="gangline-pip-")
        variables = {"TMPDIR": self._temporary.name, "PYTHONUNBUFFERED": "1"}
        variables["PIP_ROOT_USER_ACTION"] = "ignore"
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **variables},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line)
                self._fetched += bool(_FETCHED.match(line))

    def _installed(self) -> int:
        return sum(1 for _ in self._site.glob("python*/site-packages/*.dist-info"))

    def progress(self) -> tuple[float, str]:
        """Return the part that is done and what pip does: it fetches all before it installs."""
        if any(line.startswith("Installing collected") for line in self.output[-2:]):
            done = max(self._installed() - self._present, 0)
            return 0.5 + 0.5 * min(done / max(self.packages, 1), 1), "installing"
        if self.size:
            fetched = _folder_size(pathlib.Path(self._temporary.name))
            part = min(fetched / self.size, 1)
            return 0.5 * part, f"{fetched / 1e6:,.0f} of {self.size / 1e6:,.0f} MB"
        part = min(self._fetched / max(self.packages, 1), 1)
        return 0.5 * part, f"{self._fetched} of {self.packages}"

    def wait(self, timeout_s: float | None) -> int | None:
        """Return the exit status; None if pip still runs after the time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End pip if it still runs, and read the rest of its output."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self._reader.join()
        self._temporary.cleanup()


def _folder_size(folder: pathlib.Path) -> int:
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip has moved it
    return size


def install(
    python: pathlib.Path, title: str, arguments: list[str], *, packages: int = 1, size: int = 0
) -> None:
    """Install what the arguments of ``pip install`` name, and show it as one line.

    Raises:
        SystemExit: pip has failed; its command and its output are printed.
    """
    started = time.monotonic()
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if not live:
        print(f"{title} ... ", end="", flush=True)
    run = PipRun(python, arguments, packages, size)
    try:
        while (status := run.wait(INTERVAL_S if live else None)) is None:
            _show(title, *run.progress(), time.monotonic() - started)
    finally:
        run.close()
        if live:
            print("\r\x1b[K", end="")
    prefix = f"{title}: " if live else ""
    output = "".join(run.output)
    if status:
        print(f"{prefix}failed")
        print(f"$ {shlex.join(run.command)}\n{output}", file=sys.stderr)
        raise SystemExit(status)
    installed = _INSTALLED.search(output)
    count = len(installed[1].split()) if installed else 0
    what = f"{count} package{'s' if count > 1 else ''}" if count else "up to date"
    print(f"{prefix}{what}, {time.monotonic() - started:.0f} s", flush=True)


def _show(title: str, part: float, text: str, elapsed_s: float) -> None:
    full, empty = "█░" if "utf" in (sys.stdout.encoding or "").lower() else "#."
    filled = round(part * BAR_WIDTH)
    bar = full * filled + empty * (BAR_WIDTH - filled)
    line = f"{title}  {bar}  {text}, {elapsed_s:.0f} s"
    print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
