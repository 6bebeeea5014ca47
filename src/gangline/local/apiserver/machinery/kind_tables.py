"""Tables in TOML whose titles are kinds, such as ``["v1 Pod, apps Deployment"]``."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, TypeAlias

GroupKind: TypeAlias = tuple[str, str]
"""A group, empty for the core, and a kind."""


def read_kind_table(package: str, name: str) -> Iterator[tuple[GroupKind, Mapping[str, Any]]]:
    """Yield each kind with the entries of each title that names it."""
    for title, entries in tomllib.loads(
        resources.files(package).joinpath(name).read_text()
    ).items():
        for kind in title.split(", "):
            group, _, kind_name = kind.partition(" ")
            yield ("" if group == "v1" else group, kind_name), entries
