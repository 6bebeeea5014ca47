"""Commands about the command line itself: ``completion``, ``version``, ``reference``."""

import platform
from collections.abc import Iterator
from importlib.metadata import version as package_version

import click

_HOW_TO_INSTALL = """\b
To use it in this shell and in new ones:
  bash:  gangline completion bash > ~/.local/share/bash-completion/completions/gangline
  zsh:   gangline completion zsh > "${fpath[1]}/_gangline"
  fish:  gangline completion fish > ~/.config/fish/completions/gangline.fish
"""


@click.command("completion", epilog=_HOW_TO_INSTALL)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL."""
    from click.shell_completion import get_completion_class

    generator = get_completion_class(shell)
    assert generator is not None
    root = context.find_root().command
    click.echo(generator(root, {}, "gangline", "_GANGLINE_COMPLETE").source())


@click.command("version")
@click.option("--short", is_flag=True, help="Print the number alone.")
@click.option("-v", "--verbose", is_flag=True, hidden=True)
def version_command(short: bool, verbose: bool) -> None:
    """Print the version of gangline and of Python."""
    number = package_version("gangline")
    click.echo(number if short else f"gangline {number} (Python {platform.python_version()})")


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
