"""``list`` and ``get``: the state of jobs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.choosing import (
    WATCH_S,
    Choice,
    choosing_options,
    everywhere_option,
    selector_option,
    watch_option,
)
from gangline.cli.event_loop import run, run_briefly
from gangline.cli.event_views import event_table
from gangline.cli.gpu_views import gpu_block, with_gpu_metrics
from gangline.cli.job_views import job_block, job_data, job_table, now
from gangline.cli.options import (
    job_errors,
    namespace_options,
    output_option,
    say_what_is_unseen,
    type_option,
)
from gangline.cli.output import say, structured, tell
from gangline.cli.target import Target

if TYPE_CHECKING:
    from gangline.kube.client import Client
    from gangline.sdk.events import Happening
    from gangline.sdk.gpu_usage import GpuUsage
    from gangline.sdk.jobs import Job

FORMATS = ("table", "wide", "json", "yaml", "name")
RULE = "-" * 80
"""Line between two jobs, or two versions of one."""


@click.command("list")
@namespace_options
@type_option
@everywhere_option
@selector_option("jobs")
@watch_option("what changes")
@output_option(*FORMATS)
def list_command(
    target: Target, kind: str, all_namespaces: bool, selector: str, watch: bool, output: str
) -> None:
    """Show jobs, the newest first. '-o wide' shows why a job is pending or failed."""

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
    """Return the fields of each job whose change is worth another line."""
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
        say("No jobs in this namespace; -A lists all namespaces, 'gangline submit' starts a job.")


@click.command("get")
@click.argument("job", default="", shell_complete=completing.jobs)
@namespace_options
@type_option
@choosing_options
@click.option("-e", "--events", is_flag=True, help="Show events too.")
@click.option("-g", "--gpus", is_flag=True, help="Show the GPUs of each replica too.")
@watch_option("a job when it changes")
@click.option("--spec", is_flag=True, help="Print manifests for submitting the job again, as YAML.")
@output_option(*FORMATS)
def get_command(  # noqa: PLR0913, PLR0917 - one for each flag
    job: str,
    target: Target,
    kind: str,
    all_namespaces: bool,
    selector: str,
    events: bool,
    gpus: bool,
    watch: bool,
    spec: bool,
    output: str,
) -> None:
    """Show one job or selected jobs: state, replicas, and why it is pending or failed."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415

        async with target.connect() as client:
            jobs, namespace = JobClient(client, kind), target.namespace_of(client)
            choice = Choice(job, namespace, all_namespaces, selector)
            if spec:
                for each in await choice.found(jobs):
                    await _tell_spec(jobs, each.name, each.namespace, output)
                return
            first = True
            async for found in choice.looks(jobs, watch=watch):
                seen = [await _seen_whole(client, each, events, gpus) for each in found]
                if found and not first:
                    click.echo(RULE)
                _tell_whole(seen, output, one=choice.is_one, events=events, gpus=gpus)
                if first:
                    say_what_is_unseen(jobs)
                first = False

    with job_errors():
        run(show())


async def _tell_spec(jobs: Any, name: str, namespace: str, output: str) -> None:
    from gangline.sdk.changes import Changes  # noqa: PLC0415

    form = "json" if output == "json" else "yaml"
    objects = await Changes(jobs).collect(name, namespace)
    texts = [structured(each, form) for each in objects]
    click.echo("\n---\n".join(texts) if form == "yaml" else "\n".join(texts))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A job with the content of its page."""

    job: "Job"
    data: dict[str, Any]
    further: "Sequence[tuple[str, str]]"
    board: str
    happened: "Sequence[Happening]"
    busy: "GpuUsage | None"


async def _seen_whole(client: "Client", job: "Job", events: bool, gpus: bool) -> _Whole:
    from gangline.sdk.boards import board_address  # noqa: PLC0415
    from gangline.sdk.events import job_events  # noqa: PLC0415
    from gangline.sdk.goodput import goodput_data, goodput_of  # noqa: PLC0415
    from gangline.sdk.gpu_usage import gpu_usage  # noqa: PLC0415

    account = await goodput_of(client, job)
    board = await board_address(client, job.namespace, job.name)
    happened = await job_events(client, job.namespace, job.name) if events else []
    data = job_data(job, now()) | ({"tensorboard": board} if board else {})
    data |= {"goodput": goodput_data(account)} if account else {}
    busy = await gpu_usage(client) if gpus and job.allocated_gpus else None
    data = with_gpu_metrics(data, busy) if gpus else data
    more = [("Goodput", account.words), ("Step", account.pace)] if account else []
    return _Whole(job, data, more, board, happened, busy)


def _tell_whole(
    seen: "Sequence[_Whole]", output: str, *, one: bool, events: bool, gpus: bool
) -> None:
    if output == "name":
        for each in seen:
            click.echo(full_name(each.job))
        return
    data = [each.data for each in seen]
    if seen and tell(data[0] if one else data, output):
        return
    for number, each in enumerate(seen):
        if number:
            click.echo(RULE)
        _tell_block(each, events=events, gpus=gpus)


def _tell_block(seen: _Whole, *, events: bool, gpus: bool) -> None:
    job = seen.job
    click.echo(job_block(job, now(), list(seen.further)))
    if gpus:
        click.echo(f"\nGPUs:\n{gpu_block(job, seen.busy)}")
    if seen.board:
        click.echo(f"\nYour tensorboard will be available on:\n  {seen.board}")
        say(f"'gangline tensorboard {job.name} -n {job.namespace}' opens it from this machine.")
    if events:
        click.echo(f"\nEvents:\n{event_table(seen.happened, now(), indent='  ')}")
    if hint := next_step(job):
        say(hint)


def full_name(job: "Job") -> str:
    """Return kind and name, as other tools write them: ``pytorchjob/digits``."""
    return f"{job.kind.trainer}/{job.name}"


def next_step(job: "Job") -> str:
    """Return the command that helps most in the state of the job."""
    from gangline.sdk.jobs import State  # noqa: PLC0415

    where = f"{job.name} -n {job.namespace}"
    match job.state:
        case State.FAILED | State.RESTARTING:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case State.QUEUING:
            return f"\n'gangline explain {where}' shows why it is pending."
        case State.SUSPENDED:
            return f"\n'gangline resume {where}' resumes it."
        case State.PENDING if job.reason:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case _ if job.state.finished or job.running:
            return f"\n'gangline logs {where}' prints the replicas' logs."
    return ""
