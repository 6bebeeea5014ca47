"""``events``: events of jobs, their pods and their owned objects."""

import asyncio
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import (
    WATCH_INTERVAL_S,
    JobSelection,
    job_selection_options,
    watch_option,
)
from gangline.cli.params.options import optional_job_argument, output_option
from gangline.cli.params.session import ClusterSession, namespace_command
from gangline.cli.render.jobs import current_time, event_data, event_table
from gangline.cli.render.output import print_result, print_status

if TYPE_CHECKING:
    from gangline.sdk.events import EventRecord


@command(
    "events",
    examples="""
        gangline events digits
        gangline events -A --warnings -w
    """,
)
@optional_job_argument
@namespace_command
@job_selection_options
@click.option("--warnings", is_flag=True, help="Only warnings.")
@watch_option("what happens")
@output_option()
async def events_command(
    job: str,
    cluster: ClusterSession,
    all_namespaces: bool,
    selector: str,
    warnings: bool,
    watch: bool,
    output: str,
) -> None:
    """Show events of jobs (without JOB or -l: all events), the newest last."""
    printed: set[object] = set()
    while True:
        events = await _find_events(cluster, job, all_namespaces, selector)
        fresh = [
            event
            for event in events
            if event not in printed and (event.type == "Warning" or not warnings)
        ]
        names = [event.subject for event in fresh]
        if print_result([event_data(event) for event in fresh], output, names):
            pass
        elif fresh:
            shown = event_table(fresh, current_time(), wide=output == "wide")
            click.echo(shown.partition("\n")[2] if printed else shown)
        elif not watch:
            print_status("No events, or they have expired: events are stored for one hour.")
        printed.update(events)
        if not watch:
            return
        await asyncio.sleep(WATCH_INTERVAL_S)


async def _find_events(
    cluster: ClusterSession, job: str, all_namespaces: bool, selector: str
) -> "list[EventRecord]":
    """Return events of the selected jobs; of a job that does not exist any more, by its name."""
    from gangline.sdk.client import NoSuchJob
    from gangline.sdk.events import job_events

    namespace = cluster.namespace_to_list(all_namespaces)
    if not job and not selector:
        return await job_events(cluster.client, namespace)
    try:
        choice = JobSelection(job, cluster.namespace, all_namespaces, selector)
        jobs = await choice.find_jobs(cluster.jobs)
    except (NoSuchJob, CommandError):
        # Of a deleted job the events are still there, unless its name is a mistake.
        by_name = [] if selector else await job_events(cluster.client, namespace, job)
        if not by_name:
            raise
        return by_name
    of_jobs = [await job_events(cluster.client, one.namespace, one) for one in jobs]
    return sorted(
        (event for events in of_jobs for event in events),
        key=lambda event: (event.last, event.subject),
    )
