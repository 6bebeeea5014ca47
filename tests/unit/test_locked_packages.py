"""Every package that `make setup` installs is pinned, and its files are known by their hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = re.compile(
    r"^([a-z0-9.-]+)==(\S+)(?: ; [^\\\n]+?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$",
    re.MULTILINE,
)


def pinned() -> dict[str, tuple[str, str]]:
    """Version and hashes of every package in constraints.txt."""
    text = (ROOT / "constraints.txt").read_text()
    return {name: (version, hashes) for name, version, hashes in PINS.findall(text)}


def test_every_pin_has_hashes() -> None:
    assert [name for name, (_, hashes) in pinned().items() if not hashes] == []


def test_every_requirement_is_pinned_to_a_version_that_it_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    lines = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *(line for extra in extras for line in extra),
    ]
    pins = pinned()
    for requirement in map(Requirement, lines):
        if requirement.name == "torch":  # each platform has builds of its own
            continue
        version, _ = pins[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement
