"""Which jobs a command is about: one by its name, or those that ``-A`` and ``-l`` choose."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from gangline.api.meta import Object
    from gangline.sdk.client import JobClient
    from gangline.sdk.jobs import Job

F = TypeVar("F", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound="Object")

WATCH_S = 2.0
"""Between two looks of ``-w``."""


def everywhere_option(command: F) -> F:
    """Add ``-A``; the command gets it as ``all_namespaces``."""
    return click.option(
        "-A", "--all-namespaces", "--allNamespaces", is_flag=True, help="Of all namespaces."
    )(command)


def selector_option(what: str) -> Callable[[F], F]:
    """Add ``-l``; the command gets it as ``selector``."""
    return click.option(
        "-l", "--selector", default="", help=f"Only {what} with these labels, such as team=a."
    )


def watch_option(what: str) -> Callable[[F], F]:
    """Add ``-w``; the command gets it as ``watch``."""
    return click.option("-w", "--watch", is_flag=True, help=f"Go on, and print {what}.")


def refresh_option(command: F) -> F:
    """Add ``-r``, which is Arena's, and ``-w``; the command gets either as ``refresh``."""
    return click.option(
        "-r", "--refresh", "-w", "--watch", "refresh", is_flag=True,
        help="Print it again every two seconds.",
    )(command)  # fmt: skip


def choosing_options(command: F) -> F:
    """Add ``-A`` and ``-l`` for commands that take one job or choose several."""
    return everywhere_option(selector_option("jobs")(command))


@dataclass(frozen=True, slots=True)
class Choice:
    """One job by its name, or several."""

    name: str
    """Empty for all that the rest chooses."""
    namespace: str
    """The one to work in."""
    everywhere: bool = False
    """All namespaces instead of that one."""
    selector: str = ""

    def __post_init__(self) -> None:
        """Refuse a choice of nothing, and one of two kinds.

        Raises:
            CommandError: it is either.
        """
        if self.name and self.selector:
            words = f"job {self.name!r} and --selector {self.selector!r} choose twice: give one"
            raise CommandError(words, code=ExitCode.USAGE)
        if not (self.name or self.selector or self.everywhere):
            words = "which job? Give its name, or choose several by --selector or --all-namespaces"
            raise CommandError(words, code=ExitCode.USAGE)

    @property
    def is_one(self) -> bool:
        """Whether a single job is meant, so that its data are no list."""
        return bool(self.name) and not self.everywhere

    async def found(self, jobs: "JobClient") -> "list[Job]":
        """Look them up, the newest first.

        Raises:
            JobError: there is no job of the name.
        """
        if self.is_one:
            return [await jobs.get(self.name, self.namespace)]
        listed = await jobs.list(None if self.everywhere else self.namespace, self.selector)
        if not self.name:
            return listed
        named = [job for job in listed if self.name in {job.name, f"{job.kind.trainer}/{job.name}"}]
        if not named:
            raise CommandError(f"no job {self.name!r} in any namespace", code=ExitCode.NOT_FOUND)
        return named

    async def looks(self, jobs: "JobClient", *, watch: bool) -> "AsyncIterator[list[Job]]":
        """Give them, and where they are watched those that changed, until all have ended."""
        known: dict[str, Job] = {}
        while True:
            found = await self.found(jobs)
            yield [job for job in found if known.get(job.uid) != job]
            if not watch or (self.name and all(job.state.finished for job in found)):
                return
            known = {job.uid: job for job in found}
            await asyncio.sleep(WATCH_S)


async def changes(
    look: "Callable[[], Awaitable[Sequence[Kind]]]", *, watch: bool
) -> "AsyncIterator[tuple[Sequence[Kind], bool]]":
    """Give all objects that a look finds, then, where they are watched, those that changed.

    Beside the objects stands whether it is the first look.
    """
    found = await look()
    yield found, True
    while watch:
        known = {each.metadata.uid: each for each in found}
        await asyncio.sleep(WATCH_S)
        found = await look()
        if changed := [each for each in found if known.get(each.metadata.uid) != each]:
            yield changed, False
