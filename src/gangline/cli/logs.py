"""``logs``: what the replicas of a job write, merged, each line marked with its replica."""

from typing import TYPE_CHECKING

import click

from gangline.cli import job_flags
from gangline.cli.event_loop import run
from gangline.cli.log_lines import LineWriter
from gangline.cli.options import Target, job_errors, namespace_options
from gangline.cli.output import say

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job
    from gangline.sdk.logs import LogOptions


@click.command("logs")
@click.argument("job")
@namespace_options
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written, until the end.")
@click.option("-t", "--tail", type=click.IntRange(-1), default=-1, help="Last lines of each only.")
@click.option("--since", help="Lines that are not older, such as 30s, 10m or 2h.")
@click.option(
    "-i", "--instance", default="", help="One replica only: worker-3, or the name of its pod."
)
@click.option("-c", "--container", default="", help="Container; the first if not given.")
@click.option("--timestamps", is_flag=True, help="Put the time before each line.")
@click.option("-p", "--previous", is_flag=True, help="Of the containers before their last restart.")
@click.option("--prefix/--no-prefix", default=None, help="Mark lines with their replica.")
def logs_command(  # noqa: PLR0913, PLR0917 - one for each flag
    job: str,
    target: Target,
    follow: bool,
    tail: int,
    since: str | None,
    instance: str,
    container: str,
    timestamps: bool,
    previous: bool,
    prefix: bool | None,
) -> None:
    """Print what the replicas of a job write, in order of time."""
    from gangline.sdk.logs import LogOptions  # noqa: PLC0415

    options = LogOptions(
        tail=None if tail < 0 else tail,
        since_seconds=job_flags.seconds("--since", since) if since else None,
        previous=previous,
        replica=instance,
        container=container,
    )
    with job_errors():
        run(_print(job, target, options, follow=follow, timestamps=timestamps, prefix=prefix))


async def _print(
    name: str,
    target: Target,
    options: "LogOptions",
    *,
    follow: bool,
    timestamps: bool,
    prefix: bool | None,
) -> None:
    from gangline.sdk.client import JobClient  # noqa: PLC0415
    from gangline.sdk.logs import following_logs, read_logs  # noqa: PLC0415

    async with target.connect() as client:
        job = await JobClient(client).get(name, target.namespace_of(client))
        _check_instance(job, options.replica)
        marked = prefix if prefix is not None else job.wanted > 1 and not options.replica
        writer = LineWriter(marked=marked, timestamps=timestamps)
        if follow:
            async with following_logs(client, job, options) as lines:
                async for line in lines:
                    writer.write(line)
            return
        async for line in read_logs(client, job, options):
            writer.write(line)
        if not writer.lines and job.reason:
            say(f"Nothing is written yet: {job.reason}")


def _check_instance(job: "Job", instance: str) -> None:
    """Refuse the name of a replica that the job does not have."""
    known = {name for replica in job.replicas for name in (replica.name, replica.short_name)}
    if instance and known and instance not in known:
        names = ", ".join(replica.short_name for replica in job.replicas)
        raise click.BadParameter(
            f"the job has no replica {instance!r}; it has {names}", param_hint="--instance"
        )
