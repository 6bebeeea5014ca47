"""``list`` and ``get``: the state of jobs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gangline.cli.event_loop import gc_disabled
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import (
    WATCH_INTERVAL_S,
    JobSelection,
    all_namespaces_option,
    job_selection_options,
    selector_option,
    watch_option,
)
from gangline.cli.params.options import optional_job_argument, output_option, warn_of_unreadable
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.jobs import current_time, event_table, format_job, job_data, job_table
from gangline.cli.render.output import print_manifests, print_result, print_status, print_text

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.sdk.events import EventRecord
    from gangline.sdk.goodput import Goodput
    from gangline.sdk.jobs import Job
    from gangline.sdk.usage import GpuUsage

SEPARATOR = "-" * 80
"""Line between two jobs, or two versions of one."""


@command(
    "list",
    examples="""
        gangline list
        gangline list -A -l team=vision -o wide
        gangline list -w                           # continue with what changes
        gangline list -o 'jsonpath={.items[*].name}'
    """,
)
@job_command
@all_namespaces_option
@selector_option("jobs")
@watch_option("what changes")
@output_option()
async def list_command(
    cluster: ClusterSession, all_namespaces: bool, selector: str, watch: bool, output: str
) -> None:
    """Show jobs, the newest first. '-o wide' shows why a job is pending or failed."""
    namespace, jobs = cluster.namespace_to_list(all_namespaces), cluster.jobs
    if watch and output in {"table", "wide"}:
        from gangline.cli.render.live_view import live_page
        from gangline.sdk.goodput import with_steps

        with live_page() as page:
            while page:
                now = current_time()
                listed = await with_steps(cluster.client, await jobs.list(namespace, selector))
                wide = output == "wide"
                table = job_table(listed, now, namespaces=all_namespaces, wide=wide)
                page.show(f"{table}\n\n{now.astimezone():%H:%M:%S}; Ctrl-C ends the list.")
                await asyncio.sleep(WATCH_INTERVAL_S)
    with gc_disabled():
        jobs_found = await jobs.list(namespace, selector)
        _print_jobs(jobs_found, output, namespaces=all_namespaces)
    warn_of_unreadable(jobs)
    printed = _row_states(jobs_found) if watch else {}
    while watch:
        await asyncio.sleep(WATCH_INTERVAL_S)
        jobs_found = await jobs.list(namespace, selector)
        seen = _row_states(jobs_found)
        if changed := [job for job in jobs_found if seen[job.uid] != printed.get(job.uid)]:
            _print_jobs(changed, output, namespaces=all_namespaces, head=False)
        printed = seen


def _row_states(jobs: "Sequence[Job]") -> dict[str, tuple[object, ...]]:
    """Return the fields of each job whose change is worth another line."""
    return {
        job.uid: (
            job.state,
            job.running,
            job.reason,
            job.allocated_gpus,
            job.progress and job.progress.percentage,
        )
        for job in jobs
    }


def _print_jobs(jobs: "Sequence[Job]", output: str, *, namespaces: bool, head: bool = True) -> None:
    names = [job.qualified_name for job in jobs]
    if output not in {"table", "wide"}:
        print_result([job_data(job, current_time()) for job in jobs], output, names)
    elif jobs or namespaces:
        shown = job_table(jobs, current_time(), namespaces=namespaces, wide=output == "wide")
        click.echo(shown if head else shown.partition("\n")[2])
    else:
        print_status(
            "No jobs in this namespace; -A lists all namespaces, 'gangline submit' starts a job."
        )


@command(
    "get",
    examples="""
        gangline get digits
        gangline get digits -w
        gangline get digits --events --gpus
        gangline get digits --spec > digits.yaml   # to submit it again
    """,
)
@optional_job_argument
@job_command
@job_selection_options
@click.option("-e", "--events", is_flag=True, help="Show events too.")
@click.option("-g", "--gpus", is_flag=True, help="Show the GPUs of each replica too.")
@watch_option("a job when it changes")
@click.option("--spec", is_flag=True, help="Print manifests for submitting the job again, as YAML.")
@click.option(
    "--effective",
    is_flag=True,
    help="Print what a TrainJob runs: its runtime with the job's changes, as YAML.",
)
@output_option()
async def get_command(  # noqa: PLR0913, PLR0917
    job: str,
    cluster: ClusterSession,
    all_namespaces: bool,
    selector: str,
    events: bool,
    gpus: bool,
    watch: bool,
    spec: bool,
    effective: bool,
    output: str,
) -> None:
    """Show one job or selected jobs: state, replicas, and why it is pending or failed."""
    jobs = cluster.jobs
    choice = JobSelection(job, cluster.namespace, all_namespaces, selector)
    if spec:
        for selected in await choice.find_jobs(jobs):
            manifests = await cluster.editor.collect_manifests(selected.name, selected.namespace)
            print_manifests(manifests, output)
        return
    if effective:
        from gangline.sdk.manifests import effective_manifest

        selection = await choice.find_jobs(jobs)
        manifests = [await effective_manifest(cluster.client, selected) for selected in selection]
        if manifests:
            print_manifests(manifests, output)
        return
    if watch and output in {"table", "wide"}:
        from gangline.cli.render.live_view import StatusLine, live_page

        status = StatusLine(job) if choice.is_single else None
        with live_page() as page:
            while page:
                selection = await choice.find_jobs(jobs)
                pages = [await _load_page(cluster.client, one, events, gpus) for one in selection]
                texts = [_format_page(one, events=events, gpus=gpus) for one in pages]
                has_ended = all(one.job.state.finished for one in pages)
                if status:
                    status.show(pages[0].job, pages[0].account)
                page.show(f"\n{SEPARATOR}\n".join(texts), None if has_ended else status)
                if job and has_ended:
                    return
                await asyncio.sleep(WATCH_INTERVAL_S)
    first = True
    async for jobs_found in choice.poll_jobs(jobs, watch=watch):
        seen = [await _load_page(cluster.client, selected, events, gpus) for selected in jobs_found]
        if jobs_found and not first:
            click.echo(SEPARATOR)
        _print_pages(seen, output, one=choice.is_single, events=events, gpus=gpus)
        if first:
            warn_of_unreadable(jobs)
        first = False


class _JobPage(NamedTuple):
    """A job with the content of its page."""

    job: "Job"
    account: "Goodput | None"
    data: dict[str, Any]
    further: "Sequence[tuple[str, str]]"
    board: str
    board_problem: str
    """Why the TensorBoard does not run; empty if it runs or will."""
    events: "Sequence[EventRecord]"
    busy: "GpuUsage | None"


async def _load_page(client: "ApiClient", job: "Job", events: bool, gpus: bool) -> _JobPage:
    from gangline.cli.render.nodes import add_gpu_metrics
    from gangline.sdk.addresses import tensorboard_address
    from gangline.sdk.events import job_events
    from gangline.sdk.goodput import goodput_data, read_goodput
    from gangline.sdk.progress import STALE_AFTER_S, STALE_REPORT_S, format_time_ago
    from gangline.sdk.usage import gpu_usage

    if job.state in {"FAILED", "RESTARTING", "PENDING"}:
        from gangline.sdk.client import JobClient
        from gangline.sdk.diagnosis import with_cause

        job = await with_cause(JobClient(client, job.kind.trainer), job)
    account = await read_goodput(client, job)
    board = await tensorboard_address(client, job.namespace, job.name)
    job, problem = await _explain_waiting(client, job, has_board=bool(board))
    happened = await job_events(client, job.namespace, job) if events else []
    data = job_data(job, current_time()) | ({"tensorboard": board} if board else {})
    data |= {"goodput": goodput_data(account)} if account else {}
    busy = await gpu_usage(client) if gpus and job.allocated_gpus else None
    data = add_gpu_metrics(data, busy) if gpus else data
    more = []
    if report := job.progress:
        age_s = 0.0 if job.state.finished else report.age_s(current_time())
        stale = [format_time_ago(age_s)] if age_s >= STALE_REPORT_S else []
        more.append(("Progress", ", ".join(filter(None, [report.summary, *stale]))))
        more.append(("Metrics", ", ".join(" ".join(pair) for pair in report.metrics.items())))
    if account:
        step = account.progress
        age_s = 0.0 if job.state.finished else account.age_s(current_time())
        if step and age_s >= STALE_AFTER_S:
            step += f", {format_time_ago(age_s)}"
        lines = ("Goodput", account.summary), ("Step", step), ("Warm", account.warmth)
        more += [(name, text) for name, text in lines if text or name != "Warm"]
        more.append(("Replaced", account.replacement))
    if remedy := await _remedy_line(client, job):
        more.append(("Remedy", remedy))
    if advice := await _advice_line(client, job):
        more.append(("Advice", advice))
    return _JobPage(job, account, data, more, board, problem, happened, busy)


async def _explain_waiting(
    client: "ApiClient", job: "Job", *, has_board: bool
) -> "tuple[Job, str]":
    """Return the job with the reason why its pods wait for a volume, and why its TensorBoard does
    not run; what may not be read is left out.
    """
    from gangline.kube.errors import ApiError
    from gangline.sdk.addresses import read_tensorboard_state
    from gangline.sdk.events import job_events, newest_mount_failure
    from gangline.sdk.jobs import JobState

    problem = ""
    try:
        state = await read_tensorboard_state(client, job.namespace, job.name) if has_board else None
        problem = state.problem if state and state.crashed else ""
        waits = job.state is JobState.PENDING and not job.reason
        if waits or (state and not state.ready):
            events = await job_events(client, job.namespace, job.name)
            problem = problem or newest_mount_failure(events, job.name, tensorboard=True)
            job = replace(job, reason=newest_mount_failure(events, job.name)) if waits else job
    except ApiError:
        pass  # the user may not list pods or events
    return job, problem


async def _remedy_line(client: "ApiClient", job: "Job") -> str:
    """Return the command that gives a failed job the file that it lacks; empty for other jobs."""
    from gangline.sdk.client import JobClient
    from gangline.sdk.missing_files import CAUSES, find_resubmission

    if not any(cause in job.reason for cause in CAUSES):
        return ""
    return await find_resubmission(JobClient(client), job.name, job.namespace, job.reason)


async def _advice_line(client: "ApiClient", job: "Job") -> str:
    """Return the advice on a job in one line; empty if there is none, or it may not be read."""
    from gangline.kube.errors import ApiError
    from gangline.sdk.advice import job_advice

    try:
        advice = await job_advice(client, job.namespace, job.name)
    except ApiError:
        return ""
    if advice is None or all(
        owner_reference.uid != job.uid for owner_reference in advice.metadata.owner_references
    ):
        return ""
    parts = [
        f"{item.role} {item.what} {item.advised}{f' instead of {item.now}' if item.now else ''}"
        for item in advice.status.items
        if item.advised
    ]
    return f"{', '.join(parts)} (gangline advise {job.name})" if parts else ""


def _print_pages(
    seen: "Sequence[_JobPage]", output: str, *, one: bool, events: bool, gpus: bool
) -> None:
    data = [page.data for page in seen]
    names = [page.job.qualified_name for page in seen]
    if seen and print_result(data[0] if one else data, output, names):
        return
    for number, page in enumerate(seen):
        if number:
            click.echo(SEPARATOR)
        _print_page(page, events=events, gpus=gpus)


def _format_page(seen: _JobPage, *, events: bool, gpus: bool) -> str:
    job = seen.job
    parts = [format_job(job, current_time(), list(seen.further))]
    if gpus:
        from gangline.cli.render.nodes import format_job_gpus

        parts.append(f"GPUs:\n{format_job_gpus(job, seen.busy)}")
    if seen.board and seen.board_problem:
        parts.append(f"Your tensorboard does not run: {seen.board_problem}")
    elif seen.board:
        parts.append(f"Your tensorboard will be available on:\n  {seen.board}")
    if events:
        parts.append(f"Events:\n{event_table(seen.events, current_time(), indent='  ')}")
    return "\n\n".join(parts)


def _print_page(seen: _JobPage, *, events: bool, gpus: bool) -> None:
    job = seen.job
    print_text(_format_page(seen, events=events, gpus=gpus))
    if seen.board and not seen.board_problem:
        print_status(
            f"'gangline tensorboard {job.name} -n {job.namespace}' opens it from this machine."
        )
    if hint := suggest_command(job):
        print_status(hint)


def suggest_command(job: "Job") -> str:
    """Return the command that helps most in the state of the job."""
    from gangline.sdk.jobs import JobState

    where = f"{job.name} -n {job.namespace}"
    match job.state:
        case JobState.FAILED | JobState.RESTARTING:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case JobState.QUEUING:
            return f"\n'gangline explain {where}' shows why it is pending."
        case JobState.SUSPENDED:
            return f"\n'gangline resume {where}' resumes it."
        case JobState.PENDING if job.reason:
            return f"\n'gangline diagnose {where}' looks for the cause."
        case _ if job.state.finished or job.running:
            return f"\n'gangline logs {where}' prints the replicas' logs."
    return ""
