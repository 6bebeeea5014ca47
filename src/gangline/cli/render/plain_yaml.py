"""YAML output, in a module of its own because its library is slow to import."""

from typing import Any

import yaml


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated values in full, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Write texts of several lines as block scalars, so that scripts stay readable."""
    style = "|" if "\n" in value.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_PlainDumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    """Return a value as YAML with its fields in their own order, without a final newline."""
    text: str = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text.rstrip("\n")
