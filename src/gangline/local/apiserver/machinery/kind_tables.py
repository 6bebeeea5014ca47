"""Tables in TOML whose titles are kinds, such as ``["v1 Pod, apps Deployment"]``.

Keys of a title may be places, such as ``spec.containers[].ports[]|protocol=TCP,UDP``. A path names
fields; ``[]`` stands for all items of a list, ``{}`` for all values of a map. An absent object
counts as an empty one, unless ``?`` follows its name. After ``|`` stands a condition: one of some
fields has one of some values, of which ``*`` is any and an empty one none.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from gangline.api.meta.field_causes import child, indexed

ABSENT: Sequence[Any] = (None, "", [], {})
"""Values that count as absent, as in Go."""

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
    fields: Sequence[str]
    """Fields of which one must have one of ``values``; empty: there is no condition."""
    values: Sequence[str]

    def applies_to(self, owner: Any) -> bool:
        """Return whether the fields of an object fulfil the condition."""
        if not self.fields:
            return True
        given = [owner.get(field) if isinstance(owner, dict) else None for field in self.fields]
        texts = ["true" if value is True else value for value in given]
        return any(
            "" in self.values if value in ABSENT else "*" in self.values or value in self.values
            for value in texts
        )


def parse_place(key: str) -> RulePlace:
    """Return the place that a key names."""
    path, _, condition = key.partition("|")
    steps = path.replace("[]", ".[]").replace("{}", ".{}").split(".") if path else []
    fields, _, values = condition.partition("=")
    return RulePlace(steps, fields.split(",") if fields else (), values.split(","))


def values_at(
    obj: Any, path: Sequence[str], where: str = "", owner: Any = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, value and object of each field that a path names; the object of an item of a
    list is the item itself. Values of wrong types have none.
    """
    if not path:
        yield where, obj, owner
        return
    step, rest = path[0].removesuffix("?"), path[1:]
    if step == "[]":
        for index, item in enumerate(obj if isinstance(obj, list) else ()):
            yield from values_at(item, rest, indexed(where, index), item)
    elif step == "{}":
        for key, value in (obj if isinstance(obj, dict) else {}).items():
            yield from values_at(value, rest, indexed(where, key), obj)
    elif obj is None or isinstance(obj, dict):
        value = (obj or {}).get(step)
        if value is not None or step == path[0]:
            yield from values_at(value, rest, child(where, step), obj)
