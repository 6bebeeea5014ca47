"""``events``: events of jobs, their pods and their owned objects."""

import asyncio
from typing import TYPE_CHECKING

import click

from gangline.cli import completing
from gangline.cli.choosing import WATCH_S, Choice, choosing_options, watch_option
from gangline.cli.event_loop import run
from gangline.cli.event_views import event_data, event_table
from gangline.cli.job_views import now
from gangline.cli.options import job_errors, namespace_options, output_option
from gangline.cli.output import say, tell
from gangline.cli.target import Target

if TYPE_CHECKING:
    from gangline.sdk.events import Happening
    from gangline.sdk.jobs import Job


@click.command("events")
@click.argument("job", default="", shell_complete=completing.jobs)
@namespace_options
@choosing_options
@click.option("--warnings", is_flag=True, help="Only warnings.")
@watch_option("what happens")
@output_option("table", "wide", "json", "yaml", "name")
def events_command(
    job: str,
    target: Target,
    all_namespaces: bool,
    selector: str,
    warnings: bool,
    watch: bool,
    output: str,
) -> None:
    """Show events of jobs (without JOB or -l: all events), the newest last."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415
        from gangline.sdk.events import job_events  # noqa: PLC0415

        async with target.connect() as client:
            namespace = None if all_namespaces else target.namespace_of(client)
            known: set[object] = set()
            while True:
                found = await job_events(client, namespace, job)
                if selector:
                    choice = Choice(job, target.namespace_of(client), all_namespaces, selector)
                    jobs = await choice.found(JobClient(client))
                    found = [each for each in found if any(_is_of(each, one) for one in jobs)]
                fresh = [
                    each
                    for each in found
                    if each not in known and (each.type == "Warning" or not warnings)
                ]
                if output == "name":
                    for each in fresh:
                        click.echo(each.subject)
                elif not tell([event_data(each) for each in fresh], output):
                    if fresh:
                        shown = event_table(fresh, now(), wide=output == "wide")
                        click.echo(shown.partition("\n")[2] if known else shown)
                    elif not watch:
                        say("No events, or they have expired: events are stored for one hour.")
                known.update(found)
                if not watch:
                    return
                await asyncio.sleep(WATCH_S)

    with job_errors():
        run(show())


def _is_of(event: "Happening", job: "Job") -> bool:
    from gangline.sdk.events import is_called_after  # noqa: PLC0415

    name = event.subject.partition("/")[2]
    return event.namespace == job.namespace and is_called_after(name, job.name)
