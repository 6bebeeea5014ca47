"""``delete`` and ``prune``: delete jobs, by name or by age, with their pods and services.

``prune`` never deletes pending or running jobs.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from gangline.cli.errors import CommandError, ExitCode, to_command_error
from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import all_namespaces_option
from gangline.cli.params.options import namespace_options, type_option
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.jobs import current_time
from gangline.cli.render.output import format_age, print_status
from gangline.cli.submit.flags import parse_seconds

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job


@command(
    "delete",
    examples="""
        gangline delete digits
        gangline delete digits resnet -n research -y
    """,
)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completers.jobs)
@type_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@namespace_options
def delete_command(jobs: tuple[str, ...], kind: str, yes: bool, target: ClusterTarget) -> None:
    """Delete jobs, with their pods and services. If one fails, the others are still deleted."""
    confirm(f"Delete {', '.join(jobs)}?", yes=yes)
    _delete_jobs(target, [_Deletion(name, name, None, kind) for name in jobs])


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; scripts are not asked."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(question, abort=True)


class _Deletion(NamedTuple):
    """A job to delete."""

    label: str
    """The name to print."""
    name: str
    namespace: str | None
    """None: the namespace of the command."""
    kind: str


def _delete_jobs(target: ClusterTarget, deletions: Sequence[_Deletion]) -> None:
    """Delete jobs one after the other; if one fails, the others are still deleted.

    Raises:
        CommandError: at least one deletion failed.
    """
    failures = asyncio.run(_collect_failures(target, deletions))
    for failure in failures[:-1]:
        print_status(f"Error: {failure.message}")
    if not failures:
        return
    worst, total = failures[-1], len(deletions)
    code = worst.code if len({f.code for f in failures}) == 1 else ExitCode.UNEXPECTED
    count = f" ({total - len(failures)} of {total} deleted)" if total > 1 else ""
    raise CommandError(f"{worst.message}{count}", hint=worst.hint, code=code)


async def _collect_failures(
    target: ClusterTarget, deletions: Iterable[_Deletion]
) -> list[CommandError]:
    from gangline.kube.errors import ApiError, Unreachable
    from gangline.sdk.client import JobClient, JobError

    failures: list[CommandError] = []
    async with target.connect() as client:
        for job in deletions:
            namespace = job.namespace or target.namespace_of(client)
            jobs = JobClient(client, job.kind)
            try:
                await jobs.delete(job.name, namespace)
            except Unreachable:
                raise
            except (JobError, ApiError) as error:
                failures.append(to_command_error(error))
            else:
                click.echo(f"{job.label} deleted")
    return failures


@command(
    "prune",
    examples="""
        gangline prune --since 7d
        gangline prune --since 1d --failed -A --dry-run
    """,
)
@click.option(
    "-s",
    "--since",
    default="",
    help="Only jobs that ended at least this long ago, such as 30m or 7d.",
)
@all_namespaces_option
@click.option("--failed", is_flag=True, help="Only failed jobs.")
@click.option("--dry-run", is_flag=True, help="Print the jobs, delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@namespace_options
def prune_command(
    since: str, all_namespaces: bool, failed: bool, dry_run: bool, yes: bool, target: ClusterTarget
) -> None:
    """Delete jobs that have succeeded or failed, with their pods."""
    if not since:
        raise click.UsageError(
            "give the minimum age of ended jobs, such as --since 7d",
            click.get_current_context(),
        )
    longer = timedelta(seconds=parse_seconds("--since", since))
    old = select_expired(
        asyncio.run(_list_jobs(target, all_namespaces)), current_time(), longer, failed_only=failed
    )
    for job in old if dry_run else ():
        ended = format_age(job.finished or job.created, current_time())
        click.echo(f"{job.namespace}/{job.name} {job.state}, ended {ended} ago")
    if not old:
        print_status(f"No job ended more than {since} ago.")
    if dry_run or not old:
        return
    confirm(f"Delete {len(old)} jobs that ended over {since} ago?", yes=yes)
    _delete_jobs(
        target,
        [
            _Deletion(f"{job.namespace}/{job.name}", job.name, job.namespace, job.kind.trainer)
            for job in old
        ],
    )


def select_expired(
    jobs: "Sequence[Job]", at: datetime, longer: timedelta, *, failed_only: bool
) -> "list[Job]":
    """Return the jobs that ended at least ``longer`` ago."""
    from gangline.sdk.jobs import JobState

    states = {JobState.FAILED} if failed_only else {JobState.FAILED, JobState.SUCCEEDED}
    return [
        job for job in jobs if job.state in states and at - (job.finished or job.created) >= longer
    ]


async def _list_jobs(target: ClusterTarget, all_namespaces: bool) -> "list[Job]":
    from gangline.sdk.client import JobClient

    async with target.connect() as client:
        namespace = None if all_namespaces else target.namespace_of(client)
        return await JobClient(client).list(namespace)
