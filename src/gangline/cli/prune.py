"""``prune``: delete jobs that ended long ago. Pending and running jobs are never deleted."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from gangline.cli.delete import confirm, raise_failures
from gangline.cli.errors import CommandError, to_command_error
from gangline.cli.event_loop import run_async
from gangline.cli.job_flags import parse_seconds
from gangline.cli.job_views import current_time
from gangline.cli.options import translate_job_errors, namespace_options
from gangline.cli.output import format_age, print_status
from gangline.cli.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job


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
