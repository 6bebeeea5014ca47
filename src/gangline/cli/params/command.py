"""Commands whose help has options in sections and examples at its end.

    @command("list", examples="gangline list -A   # jobs of all namespaces")
    @section("Cluster", click.option("--context"))
    def list_command(context: str | None) -> None: ...

Options without a section come first, under ``Options``; those that select a cluster come last.
Examples are lines of a shell; a remark
begins with ``#``. Tests parse every example with its command.
"""

import math
from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import click

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]

OPTIONS = "Options"
"""Title of the options without a section."""
CLUSTER = "Cluster"
"""Title of the options that select a cluster."""

_sections: WeakKeyDictionary[click.Parameter, str] = WeakKeyDictionary()


def section(title: str, *options: Option) -> Callable[[F], F]:
    """Return a decorator that adds options, which help shows under a title, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            before = set(_params(command))
            command = option(command)
            for param in set(_params(command)) - before:
                _sections.setdefault(param, title)
        return command

    return add


def _params(command: Any) -> list[click.Parameter]:
    """Return the parameters that decorators have added so far."""
    added = command.params if isinstance(command, click.Command) else None
    return list(getattr(command, "__click_params__", ()) if added is None else added)


class SectionedHelp(click.Command):
    """Help with sections and examples."""

    def __init__(self, *args: Any, examples: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = cleandoc(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse them, and refuse numbers such as nan, which are in every range of click."""
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx):
            value = ctx.params.get(param.name or "")
            if isinstance(value, float) and not math.isfinite(value):
                raise click.BadParameter(f"{value} is not a finite number", ctx, param)
        return rest

    def option_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return names and help of the visible options by the title of their section."""
        sections: dict[str, list[tuple[str, str]]] = {OPTIONS: []}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_sections.get(param, OPTIONS), []).append(record)
        sections[CLUSTER] = sections.pop(CLUSTER, [])
        return {title: records for title, records in sections.items() if records}

    def subcommands(self, ctx: click.Context) -> Iterator[click.Context]:
        """Yield a context of each command below this one, without aliases and hidden commands."""
        if isinstance(self, click.Group):
            for name in self.list_commands(ctx):
                below = self.get_command(ctx, name)
                if below is not None and below.name == name and not below.hidden:
                    yield click.Context(below, ctx, name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section; of a group its commands before them."""
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        for title, records in self.option_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, whose lines are never filled."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples.splitlines()))


class Command(SectionedHelp):
    """A command with sections and examples."""


class Group(SectionedHelp, click.Group):
    """A group with sections and examples, as have its commands."""

    command_class = Command


def command(
    name: str, *, examples: str = "", cls: type[Command] = Command, **settings: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a function a command."""
    return click.command(name, cls=cls, examples=examples, **settings)


def group(
    name: str, *, examples: str = "", cls: type[Group] = Group, **settings: Any
) -> Callable[[Callable[..., Any]], Group]:
    """Return a decorator that makes a function a group of commands."""
    return click.command(name, cls=cls, examples=examples, **settings)
