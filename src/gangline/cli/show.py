"""``list`` and ``get``: how jobs are doing."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.event_loop import run, run_briefly
from gangline.cli.event_views import event_table
from gangline.cli.gpu_views import gpu_block, with_gpu_metrics
from gangline.cli.job_views import job_block, job_data, job_table, now
from gangline.cli.options import (
    Target,
    job_errors,
    namespace_options,
    output_option,
    say_what_is_unseen,
    type_option,
)
from gangline.cli.output import say, structured, tell

if TYPE_CHECKING:
    from gangline.kube.client import Client
    from gangline.sdk.jobs import Job

FORMATS = ("table", "wide", "json", "yaml", "name")
WATCH_S = 2.0
"""Between two looks of ``-w``."""


@click.command("list")
@namespace_options
@type_option
@click.option("-A", "--all-namespaces", "--allNamespaces", is_flag=True, help="Of all namespaces.")
@click.option("-l", "--selector", default="", help="Only jobs with these labels, such as team=a.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and print what changes.")
@output_option(*FORMATS)
def list_command(
    target: Target, kind: str, all_namespaces: bool, selector: str, watch: bool, output: str
) -> None:
    """Show jobs, the newest first. '-o wide' says why each waits or failed."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415

        async with target.connect() as client:
            namespace = None if all_namespaces else target.namespace_of(client)
            jobs = JobClient(client, kind)
            found = await jobs.list(namespace, selector)
            _tell_jobs(found, output, namespaces=all_namespaces)
            say_what_is_unseen(jobs)
            known = _seen(found)
            while watch:
                await asyncio.sleep(WATCH_S)
                found = await jobs.list(namespace, selector)
                seen = _seen(found)
                if changed := [job for job in found if seen[job.uid] != known.get(job.uid)]:
                    _tell_jobs(changed, output, namespaces=all_namespaces, head=False)
                known = seen

    with job_errors():
        (run if watch else run_briefly)(show())


def _seen(jobs: "Sequence[Job]") -> dict[str, tuple[object, ...]]:
    """What of a job is worth another line when it changes."""
    return {job.uid: (job.state, job.running, job.reason, job.allocated_gpus) for job in jobs}


def _tell_jobs(jobs: "Sequence[Job]", output: str, *, namespaces: bool, head: bool = True) -> None:
    if output == "name":
        for job in jobs:
            click.echo(full_name(job))
    elif output not in {"table", "wide"}:
        tell([job_data(job, now()) for job in jobs], output)
    elif jobs or namespaces:
        shown = job_table(jobs, now(), namespaces=namespaces, wide=output == "wide")
        click.echo(shown if head else shown.partition("\n")[2])
    else:
        say("No jobs in this namespace; -A shows those of all, 'gangline submit' starts one.")


@click.command("get")
@click.argument("job", shell_complete=completing.jobs)
@namespace_options
@type_option
@click.option("-e", "--events", is_flag=True, help="Show what happened as well.")
@click.option("-g", "--gpus", is_flag=True, help="Show the GPUs of each replica as well.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and print the job when it changes.")
@click.option("--spec", is_flag=True, help="Print what to submit for such a job, as YAML.")
@output_option(*FORMATS)
def get_command(  # noqa: PLR0913, PLR0917 - one for each flag
    job: str,
    target: Target,
    kind: str,
    events: bool,
    gpus: bool,
    watch: bool,
    spec: bool,
    output: str,
) -> None:
    """Show one job: its state, its replicas, and why it waits or failed."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415

        async with target.connect() as client:
            jobs, namespace = JobClient(client, kind), target.namespace_of(client)
            if spec:
                await _tell_spec(jobs, job, namespace, output)
                return
            found = await jobs.get(job, namespace)
            await _tell_job(client, found, output, events=events, gpus=gpus)
            say_what_is_unseen(jobs)
            while watch and not found.state.finished:
                await asyncio.sleep(WATCH_S)
                before, found = found, await jobs.get(job, namespace)
                if found != before:
                    click.echo("-" * 80)
                    await _tell_job(client, found, output, events=events, gpus=gpus)

    with job_errors():
        run(show())


async def _tell_spec(jobs: Any, name: str, namespace: str, output: str) -> None:
    from gangline.sdk.changes import Changes  # noqa: PLC0415

    form = "json" if output == "json" else "yaml"
    objects = await Changes(jobs).collect(name, namespace)
    texts = [structured(each, form) for each in objects]
    click.echo("\n---\n".join(texts) if form == "yaml" else "\n".join(texts))


async def _tell_job(client: "Client", job: "Job", output: str, *, events: bool, gpus: bool) -> None:
    from gangline.sdk.boards import board_address  # noqa: PLC0415
    from gangline.sdk.events import job_events  # noqa: PLC0415
    from gangline.sdk.goodput import goodput_data, goodput_of  # noqa: PLC0415
    from gangline.sdk.gpu_usage import gpu_usage  # noqa: PLC0415

    if output == "name":
        click.echo(full_name(job))
        return
    account = await goodput_of(client, job)
    board = await board_address(client, job.namespace, job.name)
    happened = await job_events(client, job.namespace, job.name) if events else []
    data = job_data(job, now()) | ({"tensorboard": board} if board else {})
    data |= {"goodput": goodput_data(account)} if account else {}
    busy = await gpu_usage(client) if gpus and job.allocated_gpus else None
    data = with_gpu_metrics(data, busy) if gpus else data
    if tell(data, output):
        return
    more = [("Goodput", account.words), ("Step", account.pace)] if account else []
    click.echo(job_block(job, now(), more))
    if gpus:
        click.echo(f"\nGPUs:\n{gpu_block(job, busy)}")
    if board:
        click.echo(f"\nYour tensorboard will be available on:\n  {board}")
        say(f"'gangline tensorboard {job.name} -n {job.namespace}' opens it from this machine.")
    if events:
        click.echo(f"\nEvents:\n{event_table(happened, now(), indent='  ')}")
    if hint := next_step(job):
        say(hint)


def full_name(job: "Job") -> str:
    """Return what other tools call a job: ``pytorchjob/digits``."""
    return f"{job.kind.trainer}/{job.name}"


def next_step(job: "Job") -> str:
    """Return the command that helps most now."""
    from gangline.sdk.jobs import State  # noqa: PLC0415

    where = f"{job.name} -n {job.namespace}"
    match job.state:
        case State.FAILED | State.RESTARTING:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case State.QUEUING:
            return f"\n'gangline explain {where}' says why it waits."
        case State.SUSPENDED:
            return f"\n'gangline resume {where}' lets it go on."
        case State.PENDING if job.reason:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case _ if job.state.finished or job.running:
            return f"\n'gangline logs {where}' prints what the replicas wrote."
    return ""
