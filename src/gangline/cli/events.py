"""``events``: what happened to jobs, their pods and what belongs to them."""

import asyncio

import click

from gangline.cli import completing
from gangline.cli.event_loop import run
from gangline.cli.event_views import event_data, event_table
from gangline.cli.job_views import now
from gangline.cli.options import Target, job_errors, namespace_options, output_option
from gangline.cli.output import say, tell
from gangline.cli.show import WATCH_S


@click.command("events")
@click.argument("job", default="", shell_complete=completing.jobs)
@namespace_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
@click.option("--warnings", is_flag=True, help="Only warnings.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and print what happens.")
@output_option("table", "json", "yaml")
def events_command(
    job: str, target: Target, all_namespaces: bool, warnings: bool, watch: bool, output: str
) -> None:
    """Show what happened to a job (without JOB: to everything), the newest last."""

    async def show() -> None:
        from gangline.sdk.events import job_events  # noqa: PLC0415

        async with target.connect() as client:
            namespace = None if all_namespaces else target.namespace_of(client)
            known: set[object] = set()
            while True:
                found = await job_events(client, namespace, job)
                fresh = [
                    each
                    for each in found
                    if each not in known and (each.type == "Warning" or not warnings)
                ]
                if not tell([event_data(each) for each in fresh], output):
                    if fresh:
                        shown = event_table(fresh, now())
                        click.echo(shown.partition("\n")[2] if known else shown)
                    elif not watch:
                        say("Nothing has happened, or it is forgotten: events are kept an hour.")
                known.update(found)
                if not watch:
                    return
                await asyncio.sleep(WATCH_S)

    with job_errors():
        run(show())
