"""Job selection and polling: one job by name, or the jobs that ``-A`` and ``-l`` select."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gangline.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from gangline.api.meta.objects import Object
    from gangline.sdk.client import JobClient
    from gangline.sdk.jobs import Job

F = TypeVar("F", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound="Object")

WATCH_INTERVAL_S = 2.0
"""Interval of ``-w``, in seconds."""


def all_namespaces_option(command: F) -> F:
    """Add ``-A``; the command receives it as ``all_namespaces``."""
    return click.option(
        "-A", "--all-namespaces", "--allNamespaces", is_flag=True, help="In all namespaces."
    )(command)


def selector_option(what: str) -> Callable[[F], F]:
    """Add ``-l``; the command receives it as ``selector``."""
    return click.option(
        "-l", "--selector", default="", help=f"Only {what} with these labels, such as team=a."
    )


def watch_option(what: str) -> Callable[[F], F]:
    """Add ``-w``; the command receives it as ``watch``."""
    return click.option("-w", "--watch", is_flag=True, help=f"Continue, and print {what}.")


def refresh_option(command: F) -> F:
    """Add Arena's ``-r`` and ``-w``; the command receives either as ``refresh``."""
    return click.option(
        "-r", "--refresh", "-w", "--watch", "refresh", is_flag=True,
        help="Print again every two seconds.",
    )(command)  # fmt: skip


async def refresh_times(refresh: bool) -> AsyncIterator[None]:
    """Yield once; with ``refresh``, then yield at intervals, after a line with the time."""
    yield
    while refresh:
        await asyncio.sleep(WATCH_INTERVAL_S)
        click.echo(f"{'-' * 29} {datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {'-' * 29}")
        yield


def job_selection_options(command: F) -> F:
    """Add ``-A`` and ``-l``, for commands that take one job or select several."""
    return all_namespaces_option(selector_option("jobs")(command))


@dataclass(frozen=True, slots=True)
class JobSelection:
    """A selection of one job by name, or of several by labels or over all namespaces."""

    name: str
    """Empty selects all jobs that the other fields match."""
    namespace: str
    """The namespace to work in, unless ``everywhere`` is set."""
    all_namespaces: bool = False
    """Select jobs of all namespaces."""
    selector: str = ""

    def __post_init__(self) -> None:
        """Refuse an empty selection, and one by both name and labels.

        Raises:
            CommandError: the selection is either.
        """
        if self.name and self.selector:
            message = f"job {self.name!r} and --selector {self.selector!r} exclude each other"
            raise CommandError(message, code=ExitCode.USAGE)
        if not (self.name or self.selector or self.all_namespaces):
            message = "no job given: use its name, --selector or --all-namespaces"
            raise CommandError(message, code=ExitCode.USAGE)

    @property
    def is_single(self) -> bool:
        """True if a single job is selected, so that the output is one object and not a list."""
        return bool(self.name) and not self.all_namespaces

    async def find_jobs(self, jobs: "JobClient") -> "list[Job]":
        """Return the selected jobs, the newest first.

        Raises:
            JobError: no job has the name.
        """
        if self.is_single:
            return [await jobs.get(self.name, self.namespace)]
        listed = await jobs.list(None if self.all_namespaces else self.namespace, self.selector)
        if not self.name:
            return listed
        named = [job for job in listed if self.name in {job.name, job.qualified_name}]
        if not named:
            from gangline.api.suggestions import did_you_mean

            near = did_you_mean(self.name, [job.name for job in listed])
            message = f"no job {self.name!r} in any namespace.{near}".removesuffix(".")
            raise CommandError(message, code=ExitCode.NOT_FOUND)
        return named

    async def poll_jobs(self, jobs: "JobClient", *, watch: bool) -> "AsyncIterator[list[Job]]":
        """Yield the selected jobs; with ``watch``, then yield changed jobs until all have ended."""
        yielded: dict[str, Job] = {}
        while True:
            jobs_found = await self.find_jobs(jobs)
            yield [job for job in jobs_found if yielded.get(job.uid) != job]
            if not watch or (self.name and all(job.state.finished for job in jobs_found)):
                return
            yielded = {job.uid: job for job in jobs_found}
            await asyncio.sleep(WATCH_INTERVAL_S)


async def poll_changes(
    list_objects: "Callable[[], Awaitable[Sequence[Kind]]]", *, watch: bool
) -> "AsyncIterator[tuple[Sequence[Kind], bool]]":
    """Yield all objects that ``list_objects`` returns; with ``watch``, then yield changed objects.

    The second element of each pair is True for the first list.
    """
    objects = await list_objects()
    yield objects, True
    while watch:
        yielded = {object_.metadata.uid: object_ for object_ in objects}
        await asyncio.sleep(WATCH_INTERVAL_S)
        objects = await list_objects()
        if changed := [
            object_ for object_ in objects if yielded.get(object_.metadata.uid) != object_
        ]:
            yield changed, False
