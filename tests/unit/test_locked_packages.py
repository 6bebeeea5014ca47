"""Every package that `make setup` installs is pinned, and its files are known by their hashes."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
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
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["build-system"]["requires"],
        *PROJECT["dependency-groups"]["build"],
        *(line for extra in extras for line in extra),
    ]
    pins = pinned()
    for requirement in map(Requirement, lines):
        # Each platform has builds of PyTorch of its own; an extra may contain another one.
        if requirement.name in {"torch", "gangline"}:
            continue
        version, _ = pins[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement


def test_every_pin_takes_the_oldest_python_that_is_promised() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    installed = {
        canonicalize_name(package.name): (package.version, package.metadata["Requires-Python"])
        for package in importlib.metadata.distributions()
    }
    accepted = {
        name: oldest in SpecifierSet(installed[name][1] or "")
        for name, (version, _) in pinned().items()
        if name in installed and installed[name][0] == version
    }
    assert [name for name, is_accepted in accepted.items() if not is_accepted] == []
    assert accepted
