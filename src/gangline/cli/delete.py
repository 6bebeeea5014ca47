"""``delete``: delete jobs with their pods and services."""

import sys

import click

from gangline.cli import completing
from gangline.cli.errors import CommandError, explain
from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import job_errors, namespace_options, type_option
from gangline.cli.output import say
from gangline.cli.target import Target


@click.command("delete")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completing.jobs)
@type_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@namespace_options
def delete_command(jobs: tuple[str, ...], kind: str, yes: bool, target: Target) -> None:
    """Delete jobs, with their pods and services. If one fails, the others are still deleted."""
    confirm(f"Delete {', '.join(jobs)}?", yes=yes)
    sum_up(run(delete_all(jobs, target, kind)), len(jobs))


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; scripts are not asked."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(question, abort=True)


def sum_up(failures: list[CommandError], total: int) -> None:
    """Report failed deletions.

    Raises:
        CommandError: at least one deletion failed.
    """
    for failure in failures[:-1]:
        say(f"Error: {failure.message}")
    if not failures:
        return
    worst = failures[-1]
    code = worst.code if len({f.code for f in failures}) == 1 else ExitCode.UNEXPECTED
    count = f" ({total - len(failures)} of {total} deleted)" if total > 1 else ""
    raise CommandError(f"{worst.message}{count}", hint=worst.hint, code=code)


async def delete_all(names: tuple[str, ...], target: Target, kind: str = "") -> list[CommandError]:
    """Delete jobs one after the other, and return the failures."""
    from gangline.kube.errors import ApiError, Unreachable  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    failures: list[CommandError] = []
    async with target.connect() as client:
        with job_errors():
            jobs = JobClient(client, kind)
        for name in names:
            try:
                with job_errors():
                    await jobs.delete(name, target.namespace_of(client))
            except Unreachable:
                raise
            except (CommandError, ApiError) as error:
                failures.append(explain(error))
            else:
                click.echo(f"{name} deleted")
    return failures
