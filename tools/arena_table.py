"""Writes docs/arena.md: every command and flag of Arena 0.15, and what it does in Gangline.

python tools/arena_table.py [--check]

The surface of Arena is in arena_surface.toml; the rest is read from the command line's own tables.
``--check`` exits with 1 if the page is not current.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gangline.cli import arena
from gangline.cli.main import gangline
from gangline.cli.submit.command import RENAMED

REFUSED = arena.REFUSED_COMMANDS | arena.REFUSED_KINDS
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/arena.md"
HEAD = """# Coming from Arena

[中文](arena.zh.md)

Commands, flags and columns of Arena work in Gangline. This page lists every command and flag of
Arena 0.15 and what it does here. `python tools/arena_table.py` writes it from the command line.

    alias arena=gangline
    arena submit pytorch --name digits --workers 2 --image pytorch:2 "python digits.py"
    arena ls

Gangline needs no chart, no `arena-kubectl` and no Helm. Jobs that Arena has submitted are listed,
scaled and deleted like others. To go back, use `arena` again: the jobs are the same kinds.

One default differs on an [embedded cluster](embedded-cluster.md) of this machine: jobs run in the
folder from which you submit them. Elsewhere, and with `--sync-mode`, the default of `--working-dir`
is `/root`, as in Arena.
"""


class UnknownFlag(Exception):
    """A flag of Arena that Gangline neither has, nor renames, nor names as unused."""


def surface() -> dict[str, Any]:
    """Return Arena's commands and flags."""
    return tomllib.loads((HERE / "arena_surface.toml").read_text())


def command_at(words: str) -> click.Command:
    """Return the command of the command line that these words name."""
    command: click.Command = gangline
    context = click.Context(command, info_name="gangline")
    for word in words.split():
        assert isinstance(command, click.Group), words
        found = command.get_command(context, word)
        assert found is not None, words
        command, context = found, click.Context(found, parent=context, info_name=word)
    return command


def meaning(flag: str, options: dict[str, click.Option]) -> str:
    """Return what a flag of Arena does; empty if the same as in Arena.

    Raises:
        UnknownFlag: the flag is refused without a reason.
    """
    submit = {name: why for name, why in arena.UNUSED_SUBMIT_FLAGS.items() if name not in options}
    unused = arena.UNUSED_GLOBAL_FLAGS | submit
    if flag == "--queue":
        return "takes the name of a queue; without one a note, and the default queue"
    if flag not in options and RENAMED.get(flag) in options:
        return f"accepted with a note: `{RENAMED[flag]}`"
    if flag in unused:
        return f"accepted with a note, no effect: {unused[flag]}"
    if flag not in options:
        raise UnknownFlag(flag)
    return ""


def rows(arena_command: dict[str, Any], groups: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the flags of a command that differ, with what they do."""
    options = {
        name: option
        for option in command_at(arena_command["here"]).params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    given = [groups[name] for name in arena_command.get("groups", ())]
    for flag in " ".join([*given, arena_command.get("flags", "")]).split():
        yield flag, meaning(flag, options) or arena_command.get("notes", {}).get(flag, "")


def page() -> str:
    """Return the page."""
    arena_surface = surface()
    lines = [HEAD, "## Commands", "", "| Arena | Gangline |", "|---|---|"]
    details = []
    for each in arena_surface["command"]:
        names = ", ".join(f"`{name}`" for name in (each["name"], *each.get("aliases", ())))
        if "here" not in each:
            word = each["name"].split()[-1]
            lines.append(
                f"| {names} | refused: {(arena.REFUSED_COMMANDS | arena.REFUSED_KINDS)[word]} |"
            )
            continue
        found = list(rows(each, arena_surface["groups"]))
        lines.append(f"| {names} | `{each['here']}` |")
        differing = [(flag, text) for flag, text in found if text]
        same = [f"`{flag}`" for flag, text in found if not text]
        details += [f"### {each['name']}", ""]
        details += [f"As in Arena: {', '.join(same)}.", ""] if same else []
        if differing:
            details += ["| flag | |", "|---|---|"]
            details += [f"| `{flag}` | {text} |" for flag, text in differing]
            details.append("")
    root = {
        name: each
        for each in gangline.params
        if isinstance(each, click.Option)
        for name in each.opts
    }
    lines += [
        "",
        "## Global flags",
        "",
        "They stand before or after the command.",
        "",
        "| flag | |",
        "|---|---|",
    ]
    lines += [
        f"| `{flag}` | {meaning(flag, root) or 'as in Arena'} |"
        for flag in arena_surface["global"].split()
    ]
    return "\n".join([*lines, "", "## Flags of the commands", "", *details]).rstrip() + "\n"


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
