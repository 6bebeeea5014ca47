"""``delete`` and ``prune``: delete jobs, by name or by age, with their pods and services.

``prune`` never deletes pending or running jobs.
"""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode, to_command_error
from gangline.cli.event_loop import run_async
from gangline.cli.params import completers
from gangline.cli.params.options import namespace_options, translate_job_errors, type_option
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.jobs import current_time
from gangline.cli.render.output import format_age, print_status
from gangline.cli.submit.parsers import parse_seconds

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job


@click.command("delete")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completers.jobs)
@type_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@namespace_options
def delete_command(jobs: tuple[str, ...], kind: str, yes: bool, target: ClusterTarget) -> None:
    """Delete jobs, with their pods and services. If one fails, the others are still deleted."""
    confirm(f"Delete {', '.join(jobs)}?", yes=yes)
    raise_failures(run_async(delete_jobs(jobs, target, kind)), len(jobs))


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; scripts are not asked."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(question, abort=True)


def raise_failures(failures: list[CommandError], total: int) -> None:
    """Report failed deletions.

    Raises:
        CommandError: at least one deletion failed.
    """
    for failure in failures[:-1]:
        print_status(f"Error: {failure.message}")
    if not failures:
        return
    worst = failures[-1]
    code = worst.code if len({f.code for f in failures}) == 1 else ExitCode.UNEXPECTED
    count = f" ({total - len(failures)} of {total} deleted)" if total > 1 else ""
    raise CommandError(f"{worst.message}{count}", hint=worst.hint, code=code)


async def delete_jobs(
    names: tuple[str, ...], target: ClusterTarget, kind: str = ""
) -> list[CommandError]:
    """Delete jobs one after the other, and return the failures."""
    from gangline.kube.errors import ApiError, Unreachable  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    failures: list[CommandError] = []
    async with target.connect() as client:
        with translate_job_errors():
            jobs = JobClient(client, kind)
        for name in names:
            try:
                with translate_job_errors():
                    await jobs.delete(name, target.namespace_of(client))
            except Unreachable:
                raise
            except (CommandError, ApiError) as error:
                failures.append(to_command_error(error))
            else:
                click.echo(f"{name} deleted")
    return failures


@click.command("prune")
@click.option(
    "-s",
    "--since",
    default="",
    help="Only jobs that ended at least this long ago, such as 30m or 7d.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
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
        run_async(_list_jobs(target, all_namespaces)), current_time(), longer, failed_only=failed
    )
    for job in old if dry_run else ():
        ended = format_age(job.finished or job.created, current_time())
        click.echo(f"{job.namespace}/{job.name} {job.state}, ended {ended} ago")
    if not old:
        print_status(f"No job ended more than {since} ago.")
    if dry_run or not old:
        return
    confirm(f"Delete {len(old)} jobs that ended over {since} ago?", yes=yes)
    raise_failures(run_async(_delete_expired(old, target)), len(old))


def select_expired(
    jobs: "Sequence[Job]", at: datetime, longer: timedelta, *, failed_only: bool
) -> "list[Job]":
    """Return the jobs that ended at least ``longer`` ago."""
    from gangline.sdk.jobs import JobState  # noqa: PLC0415

    states = {JobState.FAILED} if failed_only else {JobState.FAILED, JobState.SUCCEEDED}
    return [
        job for job in jobs if job.state in states and at - (job.finished or job.created) >= longer
    ]


async def _list_jobs(target: ClusterTarget, all_namespaces: bool) -> "list[Job]":
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    async with target.connect() as client:
        namespace = None if all_namespaces else target.namespace_of(client)
        return await JobClient(client).list(namespace)


async def _delete_expired(jobs: "Sequence[Job]", target: ClusterTarget) -> list[CommandError]:
    from gangline.kube.errors import ApiError, Unreachable  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    failures = []
    async with target.connect() as client:
        for job in jobs:
            try:
                with translate_job_errors():
                    await JobClient(client, job.kind.trainer).delete(job.name, job.namespace)
            except Unreachable:
                raise
            except (CommandError, ApiError) as error:
                failures.append(to_command_error(error))
            else:
                click.echo(f"{job.namespace}/{job.name} deleted")
    return failures
