"""``wait``: until jobs have ended, or are as one wants them."""

import asyncio
from typing import TYPE_CHECKING

import click

from gangline.cli import completing
from gangline.cli.errors import CommandError
from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.job_flags import seconds
from gangline.cli.options import Target, job_errors, namespace_options, type_option
from gangline.cli.output import say

if TYPE_CHECKING:
    from gangline.sdk.client import JobClient
    from gangline.sdk.jobs import Job

GOALS = ("finished", "succeeded", "failed", "running", "suspended", "deleted")
_LOOK_S = 0.5


@click.command("wait")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completing.jobs)
@namespace_options
@type_option
@click.option(
    "--for", "goal", type=click.Choice(GOALS), default="finished", show_default=True,
    help="What to wait for.",
)  # fmt: skip
@click.option("--timeout", default="0", help="Give up after so long, such as 30m; 0: never.")
def wait_command(jobs: tuple[str, ...], target: Target, kind: str, goal: str, timeout: str) -> None:
    """Wait for jobs. Exit status 6 if one has failed that should not have."""
    limit = seconds("--timeout", timeout) or None

    async def waited() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415

        async with target.connect() as client:
            each = JobClient(client, kind)
            namespace = target.namespace_of(client)
            try:
                async with asyncio.timeout(limit):
                    for name in jobs:
                        await _until(each, name, namespace, goal)
            except TimeoutError:
                raise CommandError(f"after {timeout} still not {goal}") from None

    with job_errors():
        run(waited())


async def _until(jobs: "JobClient", name: str, namespace: str, goal: str) -> None:
    from gangline.sdk.client import NoSuchJob  # noqa: PLC0415

    told = ""
    while True:
        try:
            job = await jobs.get(name, namespace)
        except NoSuchJob:
            if goal == "deleted":
                click.echo(f"{name} deleted")
                return
            raise
        if reached(job, goal):
            click.echo(f"{name} {job.state}")
            return
        now = f"{name}: {job.state}" + (f", {job.reason}" if job.reason else "")
        if now != told:
            say(now)
        told = now
        await asyncio.sleep(_LOOK_S)


def reached(job: "Job", goal: str) -> bool:
    """Say whether a job is as it was waited for.

    Raises:
        CommandError: it never will be.
    """
    if goal == "finished" and job.state == "FAILED":
        raise _never(job, ExitCode.JOB_FAILED)
    if goal == "finished":
        return job.state.finished
    if job.state == goal.upper():
        return True
    if job.state.finished and goal != "deleted":
        code = ExitCode.JOB_FAILED if job.state == "FAILED" else ExitCode.UNEXPECTED
        raise _never(job, code)
    return False


def _never(job: "Job", code: ExitCode) -> CommandError:
    why = f": {job.reason}" if job.reason else ""
    hint = f"'gangline diagnose {job.name} -n {job.namespace}' looks for the cause."
    return CommandError(
        f"job {job.name} has {str(job.state).lower()}{why}",
        hint=hint if code == ExitCode.JOB_FAILED else "",
        code=code,
    )
