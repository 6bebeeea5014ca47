"""Prints results to stdout as table, JSON, YAML or names; everything else goes to stderr."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from gangline.cli.render.tables import fit_text, layout


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
    from gangline.cli.render.plain_yaml import to_yaml

    return to_yaml(value)


def without_rounding_errors(value: Any) -> Any:
    """Return plain data whose floats have at most 12 digits: 0.3, not 0.30000000000000004."""
    match value:
        case float():
            return float(f"{value:.12g}")
        case dict():
            return {name: without_rounding_errors(part) for name, part in value.items()}
        case list() | tuple():
            return [without_rounding_errors(part) for part in value]
    return value


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
    from gangline.cli.render.jsonpath import render_template

    root = {"items": value} if isinstance(value, list) else value
    click.echo(render_template(output.removeprefix("jsonpath="), root))
    return True


def print_manifests(manifests: Iterable[Any], output: str) -> None:
    """Print objects that can be submitted, as YAML documents unless ``output`` is ``json``."""
    form, separator = ("json", "\n") if output == "json" else ("yaml", "\n---\n")
    click.echo(separator.join(serialize(manifest, form) for manifest in manifests))


def print_status(message: str) -> None:
    """Print a message for the user to stderr, apart from the result."""
    click.echo(fit_text(message, terminal_width()) if sys.stderr.isatty() else message, err=True)


def print_text(text: str) -> None:
    """Print a result in sentences; on a terminal, its lines are broken between words."""
    click.echo(fit_text(text, terminal_width()) if is_terminal() else text)


def is_terminal() -> bool:
    """True if results go to a terminal; colours and progress are for terminals only."""
    return sys.stdout.isatty()


def rule(width: int) -> str:
    """Return a line between two parts, not wider than the terminal."""
    return "-" * (min(width, terminal_width()) if is_terminal() else width)


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
