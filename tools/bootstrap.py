"""Create a virtual environment on a machine that has only Python.

Debian ships Python without ``ensurepip``, so ``python3 -m venv`` fails on a bare machine. Then the
environment is created without pip, and pip's own wheel, which can run from the archive, installs
itself into it. The wheel comes from the package index that pip would use (``PIP_INDEX_URL``, else
PyPI). Idempotent: a working environment is not changed.
"""

from __future__ import annotations  # so that an old Python reaches the version check

import html.parser
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import venv

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
PIP_WHEEL = re.compile(r"^pip-(\d+)\.(\d+)(?:\.(\d+))?-py3-none-any\.whl$")


class _Links(html.parser.HTMLParser):
    """Collects (text, address) of every link of a package index page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._address = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._address = dict(attrs).get("href") or "" if tag == "a" else ""

    def handle_data(self, data: str) -> None:
        if self._address:
            self.found.append((data.strip(), self._address))


def newest_pip_wheel() -> str:
    """The address of the newest released pip wheel in the index.

    Raises:
        SystemExit: the index cannot be read or has no pip wheel; the message says what to do.
    """
    page = f"{INDEX.rstrip('/')}/pip/"
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            links = _Links()
            links.feed(answer.read().decode())
    except OSError as error:
        sys.exit(
            f"cannot reach the package index {page}: {error}\n"
            "Install Debian's python3-venv, or set PIP_INDEX_URL to an index that you can reach."
        )
    wheels = [
        (tuple(int(part or 0) for part in match.groups()), address)
        for name, address in links.found
        if (match := PIP_WHEEL.match(name))
    ]
    if not wheels:
        sys.exit(f"{page} lists no pip wheel")
    return urllib.parse.urljoin(page, max(wheels)[1])


def install_pip(python: pathlib.Path) -> None:
    """Put pip into the environment of ``python``, from pip's own wheel."""
    address = newest_pip_wheel()
    name = pathlib.PurePosixPath(urllib.parse.urlsplit(address).path).name
    with tempfile.TemporaryDirectory() as folder:
        wheel = pathlib.Path(folder, name)
        with urllib.request.urlopen(address, timeout=120) as answer:
            wheel.write_bytes(answer.read())
        subprocess.run(
            [
                python,
                wheel / "pip",
                "install",
                "--quiet",
                "--no-index",
                "--find-links",
                folder,
                "pip",
            ],
            check=True,
        )


def main(folder: pathlib.Path) -> None:
    """Leave a virtual environment with pip in ``folder``."""
    python = folder / "bin" / "python"
    if python.exists():
        probe = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if probe.returncode == 0:
            return
    try:
        import ensurepip  # noqa: F401

        bundled = True
    except ImportError:
        bundled = False
    venv.create(folder, with_pip=bundled, clear=True, symlinks=True)
    if not bundled:
        install_pip(python)


def check_version() -> None:
    """Refuse a Python that is too old.

    Raises:
        SystemExit: it is; the message says what to do.
    """
    if sys.hexversion < 0x030B0000:
        sys.exit(
            f"gangline needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
            "Name another: make PYTHON=/path/to/python3.12"
        )
