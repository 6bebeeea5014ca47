"""``describe``: all details of one job on one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.choosing import Choice, choosing_options, watch_option
from gangline.cli.event_loop import run
from gangline.cli.event_views import event_data, event_table
from gangline.cli.job_views import job_block, job_data, now
from gangline.cli.options import job_errors, namespace_options, output_option, type_option
from gangline.cli.output import age, say, structured, table, tell
from gangline.cli.show import FORMATS, RULE, full_name, next_step
from gangline.cli.target import Target

if TYPE_CHECKING:
    from datetime import datetime

    from gangline.sdk.client import JobClient
    from gangline.sdk.events import Happening
    from gangline.sdk.jobs import Job


@click.command("describe")
@click.argument("job", default="", shell_complete=completing.jobs)
@namespace_options
@type_option
@choosing_options
@watch_option("a job when it changes")
@output_option(*FORMATS)
def describe_command(
    job: str,
    target: Target,
    kind: str,
    all_namespaces: bool,
    selector: str,
    watch: bool,
    output: str,
) -> None:
    """Show all details of one or several jobs: state, replicas, conditions, spec and events."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415

        async with target.connect() as client:
            jobs = JobClient(client, kind)
            choice = Choice(job, target.namespace_of(client), all_namespaces, selector)
            first = True
            async for found in choice.looks(jobs, watch=watch):
                if output == "name":
                    for each in found:
                        click.echo(full_name(each))
                    continue
                seen = [await _described(jobs, each) for each in found]
                data = [each.data for each in seen]
                if not seen or tell(data[0] if choice.is_one else data, output):
                    continue
                for page in seen:
                    if not first:
                        click.echo(RULE)
                    _tell_page(page, wide=output == "wide")
                    first = False

    with job_errors():
        run(show())


@dataclass(frozen=True, slots=True)
class _Described:
    """A job with the content of its page."""

    job: "Job"
    data: dict[str, Any]
    happened: "Sequence[Happening]"


async def _described(jobs: "JobClient", job: "Job") -> _Described:
    from gangline.sdk.boards import board_address  # noqa: PLC0415
    from gangline.sdk.events import job_events  # noqa: PLC0415
    from gangline.sdk.written import as_written  # noqa: PLC0415

    stored = await jobs.manifest(full_name(job), job.namespace)
    board = await board_address(jobs.client, job.namespace, job.name)
    happened = await job_events(jobs.client, job.namespace, job.name)
    data = job_data(job, now()) | {
        "tensorboard": board,
        "conditions": (stored.get("status") or {}).get("conditions") or [],
        "spec": as_written(stored)["spec"],
        "events": [event_data(each) for each in happened],
    }
    return _Described(job, data, happened)


def _tell_page(seen: _Described, *, wide: bool) -> None:
    data = seen.data
    click.echo(job_block(seen.job, now()))
    if data["tensorboard"]:
        click.echo(f"\nTensorboard: {data['tensorboard']}")
    click.echo(f"\nConditions:\n{_conditions(data['conditions'], now())}")
    click.echo(f"\nSpec:\n{_indented(structured(data['spec'], 'yaml'))}")
    click.echo(f"\nEvents:\n{event_table(seen.happened, now(), indent='  ', wide=wide)}")
    if hint := next_step(seen.job):
        say(hint)


def _conditions(conditions: list[dict[str, Any]], at: "datetime") -> str:
    from datetime import datetime  # noqa: PLC0415

    rows = []
    for each in conditions:
        changed = each.get("lastTransitionTime")
        since = age(datetime.fromisoformat(changed), at) if changed else "N/A"
        row = [each["type"], each["status"], since, each.get("reason"), each.get("message")]
        rows.append(row)
    return table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows, indent="  ")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
