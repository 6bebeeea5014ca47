"""Commands about the command line itself: ``completion``, ``version``, ``reference``."""

import platform
from collections.abc import Iterator
from importlib.metadata import version as package_version
from inspect import cleandoc

import click

from gangline.cli.params.command import SectionedHelp, command

_HOW_TO_INSTALL = """
gangline completion bash > ~/.local/share/bash-completion/completions/gangline
gangline completion zsh > "${fpath[1]}/_gangline"
gangline completion fish > ~/.config/fish/completions/gangline.fish
"""


@command("completion", examples=_HOW_TO_INSTALL)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, which a file of new shells reads."""
    from click.shell_completion import get_completion_class

    generator = get_completion_class(shell)
    assert generator is not None
    root = context.find_root().command
    click.echo(generator(root, {}, "gangline", "_GANGLINE_COMPLETE").source())


@command("version", examples="gangline version --short")
@click.option("--short", is_flag=True, help="Print the number alone.")
@click.option("-v", "--verbose", is_flag=True, hidden=True)
def version_command(short: bool, verbose: bool) -> None:
    """Print the version of gangline and of Python."""
    number = package_version("gangline")
    click.echo(number if short else f"gangline {number} (Python {platform.python_version()})")


@command(
    "reference",
    examples="""
        gangline reference > commands.md
        gangline reference submit list
    """,
)
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def reference_command(context: click.Context, names: tuple[str, ...]) -> None:
    """Print options and examples of all commands, or of the named commands, as Markdown."""
    root = context.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    for name in names or group.list_commands(root):
        click.echo(_reference(root, group, name))


def command_reference(name: str) -> str:
    """Return options and examples of a command and of its subcommands, as Markdown.

    Raises:
        click.UsageError: there is no such command.
    """
    from gangline.cli.main import InvocationState, gangline

    return _reference(
        click.Context(gangline, info_name="gangline", obj=InvocationState()), gangline, name
    )


def _reference(root: click.Context, group: click.Group, name: str) -> str:
    if name not in group.list_commands(root):
        raise click.UsageError(f"there is no command {name!r}", root)
    command = group.get_command(root, name)
    assert command is not None
    return "\n".join(_section(click.Context(command, root, name)))


def _section(context: click.Context, level: int = 2) -> Iterator[str]:
    """Yield the lines for a command and its subcommands."""
    command = context.command
    assert isinstance(command, SectionedHelp)
    text = cleandoc(command.help or "").replace("\b\n", "")
    yield from (f"{'#' * level} {context.command_path}", "", text, "")
    yield from ("```text", " ".join(command.get_usage(context).split()), "```", "")
    if command.examples:
        yield from ("```bash", *command.examples.splitlines(), "```", "")
    for title, records in command.option_sections(context).items():
        yield from (f"| {title} | |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records)
        yield ""
    for below in command.subcommands(context):
        yield from _section(below, level + 1)


def _cell(text: str) -> str:
    """Return text that is safe inside a Markdown table cell."""
    return " ".join(text.split()).replace("|", "\\|")
