"""``delete``: delete jobs with their pods and services."""

import sys

import click

from gangline.cli import completing
from gangline.cli.errors import CommandError, to_command_error
from gangline.cli.event_loop import run_async
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import translate_job_errors, namespace_options, type_option
from gangline.cli.output import print_status
from gangline.cli.target import ClusterTarget


@click.command("delete")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completing.jobs)
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
