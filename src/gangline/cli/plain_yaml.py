"""YAML as people read it; apart, since its library is slow to load and few commands need it."""

from typing import Any

import yaml


class _PlainDumper(yaml.SafeDumper):
    """Writes what appears twice twice, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never point at a place further up."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Write several lines as several lines: scripts can be read then."""
    style = "|" if "\n" in value.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_PlainDumper.add_representer(str, _text)


def plain_yaml(value: Any) -> str:
    """Return a value as YAML, its fields in their own order, without a line end."""
    text: str = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text.rstrip("\n")
