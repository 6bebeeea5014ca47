"""``describe``: everything about one job on one page."""

from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.event_loop import run
from gangline.cli.event_views import event_table
from gangline.cli.job_views import job_block, now
from gangline.cli.options import Target, job_errors, namespace_options, type_option
from gangline.cli.output import age, say, structured, table
from gangline.cli.show import next_step

if TYPE_CHECKING:
    from datetime import datetime


@click.command("describe")
@click.argument("job", shell_complete=completing.jobs)
@namespace_options
@type_option
def describe_command(job: str, target: Target, kind: str) -> None:
    """Show a job's state, replicas, conditions, specification and events."""

    async def show() -> None:
        from gangline.sdk.boards import board_address  # noqa: PLC0415
        from gangline.sdk.client import JobClient  # noqa: PLC0415
        from gangline.sdk.events import job_events  # noqa: PLC0415
        from gangline.sdk.written import as_written  # noqa: PLC0415

        async with target.connect() as client:
            jobs, namespace = JobClient(client, kind), target.namespace_of(client)
            found = await jobs.get(job, namespace)
            stored = await jobs.manifest(job, namespace)
            board = await board_address(client, namespace, job)
            happened = await job_events(client, namespace, job)
        click.echo(job_block(found, now()))
        if board:
            click.echo(f"\nTensorboard: {board}")
        click.echo(f"\nConditions:\n{_conditions(stored, now())}")
        click.echo(f"\nSpec:\n{_indented(structured(as_written(stored)['spec'], 'yaml'))}")
        click.echo(f"\nEvents:\n{event_table(happened, now(), indent='  ')}")
        if hint := next_step(found):
            say(hint)

    with job_errors():
        run(show())


def _conditions(stored: dict[str, Any], at: "datetime") -> str:
    from datetime import datetime  # noqa: PLC0415

    rows = []
    for each in (stored.get("status") or {}).get("conditions") or []:
        changed = each.get("lastTransitionTime")
        since = age(datetime.fromisoformat(changed), at) if changed else "N/A"
        words = [each["type"], each["status"], since, each.get("reason"), each.get("message")]
        rows.append(words)
    return table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows, indent="  ")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
