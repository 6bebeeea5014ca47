"""``wait``: wait until jobs have ended, or reach another state."""

import asyncio
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import JobSelection, job_selection_options, watch_option
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.jobs import current_time, job_data
from gangline.cli.render.output import print_result
from gangline.cli.submit.flags import parse_seconds

if TYPE_CHECKING:
    from gangline.sdk.client import JobClient
    from gangline.sdk.jobs import Job

GOALS = ("finished", "succeeded", "failed", "running", "suspended", "deleted")
_POLL_INTERVAL_S = 0.5


@command(
    "wait",
    examples="""
        gangline wait digits && gangline submit -f next.yaml
        gangline wait digits resnet --for running --timeout 30m
        gangline wait -l sweep=7
    """,
)
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=completers.jobs)
@job_command
@job_selection_options
@click.option(
    "--for", "goal", type=click.Choice(GOALS), default="finished", show_default=True,
    help="What to wait for.",
)  # fmt: skip
@click.option("--timeout", "time_limit", default="0", help="Time limit, such as 30m; 0: none.")
@watch_option("changes of each job's pods too")
@output_option()
async def wait_command(  # noqa: PLR0913, PLR0917
    jobs: tuple[str, ...],
    cluster: ClusterSession,
    all_namespaces: bool,
    selector: str,
    goal: str,
    time_limit: str,
    watch: bool,
    output: str,
) -> None:
    """Wait for jobs. Exit with status 6 if a job has failed unexpectedly."""
    limit = parse_seconds("--timeout", time_limit) or None
    meant = [(name, cluster.namespace) for name in jobs]
    if selector or all_namespaces or not jobs:
        meant = await _select_jobs(cluster, jobs, all_namespaces, selector)
    ended: list[Job] = []
    try:
        async with asyncio.timeout(limit):
            for name, where in meant:
                job = await _wait_for_job(cluster.jobs, name, where, goal, pods=watch)
                if job is None and output in {"table", "wide", "name"}:
                    click.echo(f"{name} deleted")
                elif job is not None:
                    ended.append(job)
                    _print_job(job, name, output)
    except TimeoutError:
        raise CommandError(f"after {time_limit} still not {goal}") from None
    data = [job_data(job, current_time()) for job in ended]
    print_result(data[0] if len(jobs) == 1 and len(data) == 1 else data, output)


async def _select_jobs(
    cluster: ClusterSession, names: tuple[str, ...], everywhere: bool, selector: str
) -> list[tuple[str, str]]:
    """Return name and namespace of the jobs that exist now."""
    choices = [
        JobSelection(name, cluster.namespace, everywhere, selector) for name in names or ("",)
    ]
    jobs_found = [job for choice in choices for job in await choice.find_jobs(cluster.jobs)]
    if not jobs_found:
        raise CommandError("no job matches the selection")
    return [(job.qualified_name, job.namespace) for job in jobs_found]


def _print_job(job: "Job", name: str, output: str) -> None:
    if output == "name":
        click.echo(job.qualified_name)
    elif output == "table":
        click.echo(f"{name} {job.state}")
    elif output == "wide":
        click.echo(f"{name} {job.state} {job.namespace} {job.reason}".rstrip())


async def _wait_for_job(
    jobs: "JobClient", name: str, namespace: str, goal: str, *, pods: bool
) -> "Job | None":
    """Wait for one job; return None if it was deleted as requested."""
    from gangline.cli.render.live_view import job_view
    from gangline.cli.submit.submission import JobObserver
    from gangline.sdk.client import NoSuchJob

    reported = ""
    with job_view(name, has_lines=False) as view:
        observer = JobObserver(jobs, view)
        while True:
            try:
                job = await jobs.get(name, namespace)
            except NoSuchJob:
                if goal == "deleted":
                    return None
                raise
            if job.state == "FAILED":
                from gangline.sdk.diagnosis import with_cause

                job = await with_cause(jobs, job)
            if has_reached(job, goal):
                return job
            await observer.show(job)
            replicas = [f"{replica.short_name} {replica.status}" for replica in job.replicas]
            if pods and (status := f"{name}: {', '.join(replicas)}") != reported:
                view.message(status)
                reported = status
            await asyncio.sleep(_POLL_INTERVAL_S)


def has_reached(job: "Job", goal: str) -> bool:
    """Return whether a job has reached the goal.

    Raises:
        CommandError: it can never reach the goal.
    """
    if goal == "finished" and job.state == "FAILED":
        raise _unreachable_goal(job, ExitCode.JOB_FAILED)
    if goal == "finished":
        return job.state.finished
    if job.state == goal.upper():
        return True
    if job.state.finished and goal != "deleted":
        code = ExitCode.JOB_FAILED if job.state == "FAILED" else ExitCode.UNEXPECTED
        raise _unreachable_goal(job, code)
    return False


def _unreachable_goal(job: "Job", code: ExitCode) -> CommandError:
    why = f": {job.reason}" if job.reason else ""
    hint = f"'gangline diagnose {job.name} -n {job.namespace}' looks for the cause."
    return CommandError(
        f"job {job.name} has {str(job.state).lower()}{why}",
        hint=hint if code == ExitCode.JOB_FAILED else "",
        code=code,
    )
