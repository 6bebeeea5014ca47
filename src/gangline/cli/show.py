"""``list`` and ``get``: how jobs are doing."""

from typing import TYPE_CHECKING

import click

from gangline.cli.event_loop import run
from gangline.cli.job_views import job_block, job_data, job_table, now
from gangline.cli.options import Target, job_errors, namespace_options, output_option
from gangline.cli.output import say, structured

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job

FORMATS = ("table", "wide", "json", "yaml", "name")


@click.command("list")
@namespace_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@output_option(*FORMATS)
def list_command(target: Target, all_namespaces: bool, output: str) -> None:
    """Show jobs, the newest first. '-o wide' says why each waits or failed."""
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    async def found() -> "list[Job]":
        async with target.connect() as client:
            namespace = None if all_namespaces else target.namespace_of(client)
            return await JobClient(client).list(namespace)

    jobs = run(found())
    if output in {"json", "yaml"}:
        click.echo(structured([job_data(job, now()) for job in jobs], output))
    elif output == "name":
        for job in jobs:
            click.echo(full_name(job))
    elif jobs or all_namespaces:
        wide = output == "wide"
        click.echo(job_table(jobs, now(), namespaces=all_namespaces, wide=wide))
    else:
        say("No jobs in this namespace; -A shows those of all, 'gangline submit' starts one.")


@click.command("get")
@click.argument("job")
@namespace_options
@output_option(*FORMATS)
def get_command(job: str, target: Target, output: str) -> None:
    """Show one job: its state, its replicas, and why it waits or failed."""
    from gangline.sdk.client import JobClient  # noqa: PLC0415

    async def found() -> "Job":
        async with target.connect() as client:
            return await JobClient(client).get(job, target.namespace_of(client))

    with job_errors():
        shown = run(found())
    match output:
        case "json" | "yaml":
            click.echo(structured(job_data(shown, now()), output))
        case "name":
            click.echo(full_name(shown))
        case _:
            click.echo(job_block(shown, now()))
            if hint := next_step(shown):
                say(hint)


def full_name(job: "Job") -> str:
    """Return what other tools call a job: ``pytorchjob/digits``."""
    return f"{job.kind.trainer}/{job.name}"


def next_step(job: "Job") -> str:
    """Return the command that helps most now."""
    if job.state.finished or job.running:
        return f"\n'gangline logs {job.name} -n {job.namespace}' prints what the replicas wrote."
    return ""
