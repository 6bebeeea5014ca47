"""``describe``: all details of one job on one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.commands.get import SEPARATOR, suggest_command
from gangline.cli.params.job_selection import JobSelection, job_selection_options, watch_option
from gangline.cli.params.options import optional_job_argument, output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.jobs import current_time, event_data, event_table, format_job, job_data
from gangline.cli.render.output import (
    format_age,
    format_table,
    print_result,
    print_status,
    serialize,
)

if TYPE_CHECKING:
    from datetime import datetime

    from gangline.sdk.client import JobClient
    from gangline.sdk.events import EventRecord
    from gangline.sdk.jobs import Job


@click.command("describe")
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
        seen = [await _load_description(cluster.jobs, description) for description in jobs]
        data = [description.data for description in seen]
        names = [description.qualified_name for description in jobs]
        if not seen or print_result(data[0] if choice.is_single else data, output, names):
            continue
        for page in seen:
            if not first:
                click.echo(SEPARATOR)
            _print_description(page, wide=output == "wide")
            first = False


@dataclass(frozen=True, slots=True)
class _JobDescription:
    """A job with the content of its page."""

    job: "Job"
    data: dict[str, Any]
    happened: "Sequence[EventRecord]"


async def _load_description(jobs: "JobClient", job: "Job") -> _JobDescription:
    from gangline.sdk.addresses import tensorboard_address
    from gangline.sdk.events import job_events
    from gangline.sdk.manifests import to_submittable

    stored = await jobs.manifest(job.qualified_name, job.namespace)
    board = await tensorboard_address(jobs.client, job.namespace, job.name)
    happened = await job_events(jobs.client, job.namespace, job.name)
    data = job_data(job, current_time()) | {
        "tensorboard": board,
        "conditions": (stored.get("status") or {}).get("conditions") or [],
        "spec": to_submittable(stored)["spec"],
        "events": [event_data(event) for event in happened],
    }
    return _JobDescription(job, data, happened)


def _print_description(seen: _JobDescription, *, wide: bool) -> None:
    data = seen.data
    click.echo(format_job(seen.job, current_time()))
    if data["tensorboard"]:
        click.echo(f"\nTensorboard: {data['tensorboard']}")
    click.echo(f"\nConditions:\n{_conditions(data['conditions'], current_time())}")
    click.echo(f"\nSpec:\n{_indented(serialize(data['spec'], 'yaml'))}")
    click.echo(f"\nEvents:\n{event_table(seen.happened, current_time(), indent='  ', wide=wide)}")
    if hint := suggest_command(seen.job):
        print_status(hint)


def _conditions(conditions: list[dict[str, Any]], at: "datetime") -> str:
    from datetime import datetime

    rows = []
    for condition in conditions:
        changed = condition.get("lastTransitionTime")
        since = format_age(datetime.fromisoformat(changed), at) if changed else "N/A"
        row = [
            condition["type"],
            condition["status"],
            since,
            condition.get("reason"),
            condition.get("message"),
        ]
        rows.append(row)
    return format_table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows, indent="  ")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
