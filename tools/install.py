"""Installs sections of constraints.txt into a virtual environment, which it creates.

usage: install.py FOLDER [--gangline] SECTION...

--gangline installs PyTorch and the package itself, too. Every package is pinned with the hashes of
its files, except PyTorch: each platform has builds of its own.
"""

from __future__ import annotations  # so that an old Python reaches the version check

# so that an old Python reaches the version check of bootstrap.py
import argparse
import pathlib
import platform
import re
import subprocess

import bootstrap
import pip_progress

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOCKED = ("--require-hashes", "--no-deps", "--no-build-isolation", "--requirement")
TITLES = {
    "runtime": "Packages of gangline",
    "dev": "Packages for development",
    "browser": "Packages for tests in a browser",
    "docs": "Packages for the documentation",
}
"""By the first section that is installed."""


def locked_packages(lock: str, sections: list[str]) -> str:
    """Return those lines of the lock that belong to the sections.

    Raises:
        SystemExit: there is no such section.
    """
    parts = re.split(r"^# section (\S+)$", lock, flags=re.MULTILINE)
    by_name = dict(zip(parts[1::2], parts[2::2], strict=True))
    unknown = [name for name in sections if name not in by_name]
    if unknown:
        raise SystemExit(f"constraints.txt has no section {unknown[0]!r}, but {', '.join(by_name)}")
    return "".join(by_name[name] for name in sections)


def torch_requirement(project: str) -> str:
    """Return the version of PyTorch that pyproject.toml pins."""
    pinned = re.search(r'^demo = .*"(torch==[^"]*)"', project, re.MULTILINE)
    assert pinned is not None
    return pinned[1]


def main() -> None:
    """Install, with a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gangline", action="store_true")
    parser.add_argument("sections", nargs="+", metavar="SECTION")
    given = parser.parse_args()
    bootstrap.check_version()
    python = given.folder.absolute() / "bin/python"
    text = locked_packages((ROOT / "constraints.txt").read_text("utf-8"), given.sections)
    if given.gangline:
        print(f"Python {platform.python_version()} in {given.folder}", flush=True)
        bootstrap.main(given.folder)
    lock = given.folder / "locked.txt"
    lock.write_text(text, "utf-8")
    pip_progress.install(
        python,
        TITLES.get(given.sections[0], f"Packages of section {given.sections[0]}"),
        [*LOCKED, str(lock)],
        packages=len(re.findall(r"^[a-z0-9].*==", text, re.MULTILINE)),
    )
    if given.gangline:
        torch = torch_requirement((ROOT / "pyproject.toml").read_text("utf-8"))
        done = subprocess.run([python, ROOT / "tools/install_torch.py", torch], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        itself = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        pip_progress.install(python, "Gangline", itself)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
