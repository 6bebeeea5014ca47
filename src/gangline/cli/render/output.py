"""Prints results to stdout as table, JSON, YAML or names; everything else goes to stderr.

``-o jsonpath=TEMPLATE``: the part of kubectl's templates that looks values up.

``{.items[*].name}`` is replaced by the values at the path, ``{"\n"}`` by the text.

YAML output, in a module of its own because its library is slow to import.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click
import yaml

from gangline.cli.render.tables import layout

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")


def render_template(template: str, value: Any) -> str:
    """Return a template with its paths replaced by the values at them.

    Raises:
        BadParameter: the template is invalid.
    """
    from gangline.api.jsonpath import JSONPath, JSONPathError

    text = template if "{" in template else f"{{{template}}}"
    if "".join(found.group(0) for found in _PART.finditer(text)) != text:
        raise _wrong(template, "braces do not match")
    parts: list[str] = []
    for path, literal in _PART.findall(text):
        if literal:
            parts.append(literal)
        elif path.startswith('"'):
            parts.append(_parse_literal(template, path))
        else:
            try:
                found = JSONPath(path.removeprefix("$")).find(value)
            except JSONPathError as error:
                raise _wrong(template, str(error)) from error
            parts.append(" ".join(_text(each) for each in found))
    return "".join(parts)


def _parse_literal(template: str, written: str) -> str:
    try:
        return str(json.loads(written))
    except json.JSONDecodeError:
        raise _wrong(template, f"{written} is not a text in double quotes") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrong(template: str, problem: str) -> click.BadParameter:
    return click.BadParameter(
        f"{template!r}: {problem}; write a path such as {{.items[*].name}}",
        param_hint="-o jsonpath",
    )


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated values in full, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plain_yaml_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Write texts of several lines as block scalars, so that scripts stay readable."""
    style = "|" if "\n" in value.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_PlainDumper.add_representer(str, _plain_yaml_text)


def to_yaml(value: Any) -> str:
    """Return a value as YAML with its fields in their own order, without a final newline."""
    text: str = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text.rstrip("\n")


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Return rows under a header, left-aligned; on a terminal, within its width."""
    width = terminal_width() if is_terminal() else None
    return layout(head, (list(map(_cell, row)) for row in rows), width=width, indent=indent)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "N/A"
    text = str(value)
    # A line break in a message would split its row. Most cells are one word.
    return text if text.isalnum() else " ".join(text.split())


def serialize(value: Any, form: str) -> str:
    """Return a value as ``json`` or ``yaml``."""
    if form == "json":
        import json

        return json.dumps(value, indent=4, ensure_ascii=False)

    return to_yaml(value)


def print_result(value: Any, output: str, names: Iterable[str] = ()) -> bool:
    """Print a value as ``json``, ``yaml`` or ``jsonpath=TEMPLATE``, or its names as ``name``.

    Return False for other formats. A template sees a list as the ``items`` of an object, as in
    kubectl.
    """
    if output == "name":
        for name in names:
            click.echo(name)
        return True
    if output in {"json", "yaml"}:
        click.echo(serialize(value, output))
        return True
    if not output.startswith("jsonpath="):
        return False

    root = {"items": value} if isinstance(value, list) else value
    click.echo(render_template(output.removeprefix("jsonpath="), root))
    return True


def print_status(message: str) -> None:
    """Print a message for the user to stderr, apart from the result."""
    click.echo(message, err=True)


def is_terminal() -> bool:
    """True if results go to a terminal; colours and progress are for terminals only."""
    return sys.stdout.isatty()


def supports_sparklines() -> bool:
    """True if results go to a terminal that can show block characters."""
    return is_terminal() and "utf" in (sys.stdout.encoding or "").lower()


def terminal_size() -> tuple[int, int]:
    """Return columns and rows of the terminal."""
    from shutil import get_terminal_size

    size = get_terminal_size()
    return size.columns, size.lines


def terminal_width() -> int:
    return terminal_size()[0]


def format_age(since: datetime | None, until: datetime) -> str:
    """Return a time span in its largest unit: ``57s``, ``3m``, ``2h``, ``5d``, ``1y``."""
    if since is None:
        return "N/A"
    seconds = max(0, int((until - since).total_seconds()))
    for size, unit in ((31_536_000, "y"), (86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
