"""``prune``: delete jobs that ended long ago. Pending and running jobs are never deleted."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from gangline.cli.delete import confirm, sum_up
from gangline.cli.errors import CommandError, explain
from gangline.cli.event_loop import run
from gangline.cli.job_flags import seconds
from gangline.cli.job_views import now
from gangline.cli.options import job_errors, namespace_options
from gangline.cli.output import age, say
from gangline.cli.target import Target

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
    since: str, all_namespaces: bool, failed: bool, dry_run: bool, yes: bool, target: Target
) -> None:
    """Delete jobs that have succeeded or failed, with their pods."""
    if not since:
        raise click.UsageError(
            "give the minimum age of ended jobs, such as --since 7d",
            click.get_current_context(),
        )
    longer = timedelta(seconds=seconds("--since", since))
    old = pruned(run(_jobs(target, all_namespaces)), now(), longer, failed_only=failed)
    for job in old if dry_run else ():
        ended = age(job.finished or job.created, now())
        click.echo(f"{job.namespace}/{job.name} {job.state}, ended {ended} ago")
    if not old:
        say(f"No job ended more than {since} ago.")
    if dry_run or not old:
        return
    confirm(f"Delete {len(old)} jobs that ended over {since} ago?", yes=yes)
    sum_up(run(_delete(old, target)), len(old))


def pruned(
    jobs: "Sequence[Job]", at: datetime, longer: timedelta, *, failed_only: bool
) -> "list[Job]":
    """Return the jobs that ended at least ``longer`` ago."""
    from gangline.sdk.jobs import State  # noqa: PLC0415

    states = {State.FAILED} if failed_only else {State.FAILED, State.SUCCEEDED}
    return [
        job for job in jobs if job.state in states and at - (job.finished or job.created) >= longer
    ]


async def _jobs(target: Target, all_namespaces: bool) -> "list[Job]":
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    async with target.connect() as client:
        namespace = None if all_namespaces else target.namespace_of(client)
        return await JobClient(client).list(namespace)


async def _delete(jobs: "Sequence[Job]", target: Target) -> list[CommandError]:
    from gangline.kube.errors import ApiError, Unreachable  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    failures = []
    async with target.connect() as client:
        for job in jobs:
            try:
                with job_errors():
                    await JobClient(client, job.kind.trainer).delete(job.name, job.namespace)
            except Unreachable:
                raise
            except (CommandError, ApiError) as error:
                failures.append(explain(error))
            else:
                click.echo(f"{job.namespace}/{job.name} deleted")
    return failures
