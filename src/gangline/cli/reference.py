"""``gangline reference``: Markdown documentation of every command, generated from the commands."""

from collections.abc import Iterator

import click


@click.command("reference")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def reference_command(context: click.Context, names: tuple[str, ...]) -> None:
    """Print the options of all commands, or of the named commands, as Markdown."""
    root = context.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    unknown = [name for name in names if name not in group.list_commands(root)]
    if unknown:
        raise click.UsageError(f"there is no command {unknown[0]!r}", context)
    for name in names or group.list_commands(root):
        command = group.get_command(root, name)
        assert command is not None
        click.echo("\n".join(_section(click.Context(command, root, name))))


def _section(context: click.Context) -> Iterator[str]:
    """Yield the lines for a command and its subcommands."""
    command = context.command
    yield from (f"## {context.command_path}", "", command.help or "", "")
    yield from ("```", " ".join(command.get_usage(context).split()), "```", "")
    rows = [
        record
        for option in command.params
        if isinstance(option, click.Option) and (record := option.get_help_record(context))
    ]
    if rows:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in rows)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _section(click.Context(below, context, name))


def _cell(text: str) -> str:
    """Return text that is safe inside a Markdown table cell."""
    return " ".join(text.split()).replace("|", "\\|")
