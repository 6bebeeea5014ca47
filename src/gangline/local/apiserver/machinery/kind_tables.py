"""Tables in TOML whose titles are kinds, such as ``["v1 Pod, apps Deployment"]``.

Keys of a title may be places, such as ``spec.containers[].ports[]|protocol=TCP,UDP``: a path, and a
condition for a field beside what it names.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

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


class RulePlace(NamedTuple):
    """Where a rule applies."""

    path: Sequence[str]
    """Fields; ``[]`` and ``{}`` stand for all items of the list or map before."""
    field: str
    """The field that must have one of ``values``; empty: there is no condition."""
    values: Sequence[str]


def parse_place(key: str) -> RulePlace:
    """Return the place that a key names."""
    path, _, condition = key.partition("|")
    steps = path.replace("[]", ".[]").replace("{}", ".{}").split(".") if path else []
    field, _, values = condition.partition("=")
    return RulePlace(steps, field, values.split(","))
