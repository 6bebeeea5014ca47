"""Pin what `make setup` installs: versions and hashes of every package, in constraints.txt.

usage: lock.py CONSTRAINTS    (run by the Python of an environment with all extras)

Takes the versions that are installed, and the SHA-256 of all their files in the package index
(``PIP_INDEX_URL``, else PyPI; PEP 691). The file has one section for each extra of pyproject.toml,
each after those that it builds on, so that a part of the file can be installed. PyTorch is pinned
without a hash and installed by itself, because each platform has several builds of one version.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
SECTIONS = (
    "runtime",
    "build",
    "demo",
    "dev",
    "brain",
    "brain-postgres",
    "brain-mysql",
    "initializer",
    "docs",
    "browser",
)
"""``runtime`` and ``build`` have what the package needs, the others are its extras."""
BUILD = ("hatchling", "editables")
"""What ``pip install --editable`` would otherwise fetch for an environment of its own."""
BY_ITSELF = "torch"
"""Installed without its hash; what only it requires on this platform is its own business."""


def closure(name: str, extras: frozenset[str], found: set[str]) -> None:
    """Add the names of all packages that ``name`` with ``extras`` requires."""
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        required = canonicalize_name(requirement.name)
        if required in found:
            continue
        found.add(required)
        closure(required, frozenset(requirement.extras), found)


def hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of the files of a release, sorted.

    Raises:
        SystemExit: the index has no files of it.
    """
    request = urllib.request.Request(
        f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    release = re.compile(rf"^[^-]+-{re.escape(version)}(-|\.tar\.gz$|\.zip$)")
    found = sorted(each["hashes"]["sha256"] for each in files if release.match(each["filename"]))
    if not found:
        sys.exit(f"{INDEX} has no file of {name} {version}")
    return found


def pin(name: str) -> str:
    """The lines of one package."""
    version = importlib.metadata.version(name)
    if name == BY_ITSELF:
        return f"# {name}=={version.partition('+')[0]} (see tools/lock.py)"
    lines = [f"{name}=={version}", *(f"    --hash=sha256:{each}" for each in hashes(name, version))]
    return " \\\n".join(lines)


def main(path: pathlib.Path) -> None:
    """Write the file."""
    text = "# Written by `make lock`: versions and hashes of what `make setup` installs.\n"
    before: set[str] = set()
    with ThreadPoolExecutor(8) as pool:
        for section in SECTIONS:
            found: set[str] = set()
            for name in BUILD if section == "build" else ("gangline",):
                closure(name, frozenset({section}), found)
            found.update(BUILD if section == "build" else ())
            names = sorted(found - before)
            before |= found
            text += f"\n# section {section}\n" + "\n".join(pool.map(pin, names)) + "\n"
    path.write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
