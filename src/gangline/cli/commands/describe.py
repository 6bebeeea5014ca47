"""``describe``: all details of one job on one page."""

from collections.abc import Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.commands.get import SEPARATOR, suggest_command
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import JobSelection, job_selection_options, watch_option
from gangline.cli.params.options import optional_job_argument, output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.jobs import current_time, event_data, event_table, format_job, job_data
from gangline.cli.render.output import (
    format_age,
    format_table,
    print_result,
    print_status,
    print_text,
    serialize,
)

if TYPE_CHECKING:
    from datetime import datetime

    from gangline.sdk.client import JobClient
    from gangline.sdk.events import EventRecord
    from gangline.sdk.jobs import Job


@command(
    "describe",
    examples="""
        gangline describe digits
        gangline describe -l team=vision -o yaml
    """,
)
@optional_job_argument
@job_command
@job_selection_options
@watch_option("a job when it changes")
@output_option()
async def describe_command(
    job: str,
    cluster: ClusterSession,
    all_namespaces: bool,
    selector: str,
    watch: bool,
    output: str,
) -> None:
    """Show all details of one or several jobs: state, replicas, conditions, spec and events."""
    choice = JobSelection(job, cluster.namespace, all_namespaces, selector)
    first = True
    async for jobs in choice.poll_jobs(cluster.jobs, watch=watch):
        pages = [await _load_description(cluster.jobs, selected) for selected in jobs]
        data = [description for description, _ in pages]
        names = [selected.qualified_name for selected in jobs]
        if not pages or print_result(data[0] if choice.is_single else data, output, names):
            continue
        for selected, (description, events) in zip(jobs, pages, strict=True):
            if not first:
                click.echo(SEPARATOR)
            _print_description(selected, description, events, wide=output == "wide")
            first = False


async def _load_description(
    jobs: "JobClient", job: "Job"
) -> "tuple[dict[str, Any], Sequence[EventRecord]]":
    from gangline.sdk.addresses import tensorboard_address
    from gangline.sdk.events import job_events
    from gangline.sdk.manifests import to_submittable

    stored = await jobs.manifest(job.qualified_name, job.namespace)
    board = await tensorboard_address(jobs.client, job.namespace, job.name)
    events = await job_events(jobs.client, job.namespace, job)
    data = job_data(job, current_time()) | {
        "tensorboard": board,
        "conditions": (stored.get("status") or {}).get("conditions") or [],
        "spec": to_submittable(stored)["spec"],
        "events": [event_data(event) for event in events],
    }
    return data, events


def _print_description(
    job: "Job", data: dict[str, Any], events: "Sequence[EventRecord]", *, wide: bool
) -> None:
    print_text(format_job(job, current_time()))
    if data["tensorboard"]:
        click.echo(f"\nTensorboard: {data['tensorboard']}")
    click.echo(f"\nConditions:\n{_conditions(data['conditions'], current_time())}")
    click.echo(f"\nSpec:\n{indent(serialize(data['spec'], 'yaml'), '  ', lambda _: True)}")
    click.echo(f"\nEvents:\n{event_table(events, current_time(), indent='  ', wide=wide)}")
    if hint := suggest_command(job):
        print_status(hint)


def _conditions(conditions: list[dict[str, Any]], at: "datetime") -> str:
    from datetime import datetime

    rows = []
    for condition in conditions:
        changed = condition.get("lastTransitionTime")
        since = format_age(datetime.fromisoformat(changed), at) if changed else "N/A"
        texts = condition.get("reason"), condition.get("message")
        rows.append([condition["type"], condition["status"], since, *texts])
    return format_table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows, indent="  ")
