"""``delete``: jobs, with their pods and services."""

import click

from gangline.cli.errors import CommandError, explain
from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import Target, job_errors, namespace_options
from gangline.cli.output import say


@click.command("delete")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@namespace_options
def delete_command(jobs: tuple[str, ...], target: Target) -> None:
    """Delete jobs, with their pods and services. One that fails does not keep the others."""
    failures = run(_delete(jobs, target))
    for failure in failures[:-1]:
        say(f"Error: {failure.message}")
    if failures:
        worst = failures[-1]
        code = worst.code if len({f.code for f in failures}) == 1 else ExitCode.UNEXPECTED
        raise CommandError(worst.message, hint=worst.hint, code=code)


async def _delete(names: tuple[str, ...], target: Target) -> list[CommandError]:
    """Delete jobs one after the other; return what went wrong."""
    from gangline.kube.errors import ApiError, Unreachable  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    failures: list[CommandError] = []
    async with target.connect() as client:
        jobs = JobClient(client)
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
