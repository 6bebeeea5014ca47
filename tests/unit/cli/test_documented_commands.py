"""Every command line that the documentation shows is one that this version accepts."""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import click
import pytest

from gangline.cli.main import InvocationState, gangline
from gangline.cli.params.command import SectionedHelp
from unit.cli.documented_commands import PAGES, ROOT, gangline_commands, mentioned, shell_lines

Found = tuple[str, list[str]]


def distinct(lines_of: Callable[[Path], Iterable[str]]) -> list[Found]:
    """Return each command line once, with the first page that has it."""
    pages: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for words in gangline_commands(lines_of(page)):
            pages.setdefault(tuple(words), page.name)
    return [(page, [*words]) for words, page in pages.items()]


SHOWN = distinct(shell_lines)
MENTIONED = distinct(mentioned)


def name_of(value: object) -> str:
    return " ".join(value)[:60] if isinstance(value, list) else str(value)


def parse(words: list[str]) -> None:
    """Parse a command line down to its command, without running it.

    Raises:
        click.ClickException: it is not accepted.
    """
    command: click.Command = gangline
    words = [word for word in words if word != "--help"]
    context = command.make_context("gangline", list(words), obj=InvocationState())
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)


@pytest.fixture(autouse=True)
def files_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of examples, such as job.yaml, are the reader's."""
    monkeypatch.setattr(click.Path, "convert", lambda _, value, *__: value)


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=name_of)
def test_command_of_the_documentation_is_accepted(page: str, words: list[str]) -> None:
    parse(words)


def test_pages_install_this_package_from_a_clone_only() -> None:
    """No index has it, so its name alone leads nowhere."""
    written = ((page.name, page.read_text(encoding="utf-8")) for page in PAGES)
    named = [(name, re.findall(r"pip install ['\"]?gangline\b", text)) for name, text in written]
    assert not [name for name, installs in named if installs]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        extra
        for page in PAGES
        for extra in re.findall(
            r"(?:gangline|['\"`]\.)\[([\w-]+)\]", page.read_text(encoding="utf-8")
        )
    }
    assert {"brain", "kubernetes"} <= asked <= extras["optional-dependencies"].keys()


@pytest.mark.parametrize(("page", "words"), MENTIONED, ids=name_of)
def test_command_in_a_sentence_is_accepted(page: str, words: list[str]) -> None:
    # A sentence names a command without its arguments, or an option without its value.
    with suppress(click.MissingParameter, click.BadOptionUsage):
        parse(words)


def commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a context of every command and subcommand that help shows."""
    command = context.command
    assert isinstance(command, SectionedHelp)
    for below in command.subcommands(context):
        yield below
        yield from commands(below)


COMMANDS = list(commands(click.Context(gangline, info_name="gangline")))


def typed(examples: str) -> Iterator[list[str]]:
    """Yield the words behind ``gangline`` of every command in examples."""
    for line in examples.replace("\\\n", "").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for is_operator, words in groupby(lexer, lambda word: set(word) <= set("&|;<>")):
            command = [word for word in words if not re.match("[A-Z_]+=", word)]
            if not is_operator and command[:1] == ["gangline"]:
                yield command[1:]


@pytest.mark.parametrize("context", COMMANDS, ids=lambda context: str(context.command_path))
def test_help_ends_with_examples_that_the_command_accepts(context: click.Context) -> None:
    command = context.command
    assert isinstance(command, SectionedHelp)
    lines = list(typed(command.examples))
    path = context.command_path.split()[1:]
    assert any(words[: len(path)] == path for words in lines)
    for words in lines:
        parse(words)
    shown = command.get_help(context).rstrip().splitlines()
    last = command.examples.splitlines()[-1]
    assert shown[-1] == f"  {last}"
    assert max(map(len, shown)) <= 80


def test_wrong_command_is_refused() -> None:
    assert len(SHOWN) + len(MENTIONED) > 100
    with pytest.raises(click.UsageError):
        parse(["submit", "pytorch", "--no-such-flag"])
