"""Every command line that the documentation shows is one that this version accepts."""

from contextlib import suppress

import click
import pytest

from gangline.cli.main import InvocationState, gangline
from unit.cli.documented_commands import PAGES, gangline_commands, mentioned, shell_lines

Found = tuple[str, list[str]]
SHOWN: list[Found] = [
    (page.name, words) for page in PAGES for words in gangline_commands(shell_lines(page))
]
MENTIONED: list[Found] = [
    (page.name, words) for page in PAGES for words in gangline_commands(mentioned(page))
]


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


@pytest.mark.parametrize(("page", "words"), MENTIONED, ids=name_of)
def test_command_in_a_sentence_is_accepted(page: str, words: list[str]) -> None:
    # A sentence names a command without its arguments, or an option without its value.
    with suppress(click.MissingParameter, click.BadOptionUsage):
        parse(words)


def test_wrong_command_is_refused() -> None:
    assert len(SHOWN) + len(MENTIONED) > 100
    with pytest.raises(click.UsageError):
        parse(["submit", "pytorch", "--no-such-flag"])
