"""``top job``: requests, allocation and usage of jobs."""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.choosing import Choice, choosing_options, refresh_option
from gangline.cli.event_loop import run
from gangline.cli.gpu_views import DEVICE_HEAD, device_cells, with_gpu_metrics
from gangline.cli.job_views import duration, job_data, now
from gangline.cli.node_views import worth
from gangline.cli.options import (
    job_errors,
    namespace_options,
    output_option,
    say_what_is_unseen,
    type_option,
)
from gangline.cli.output import draws_curves, table, tell
from gangline.cli.sparkline import CURVE, NOTHING, History
from gangline.cli.target import Target

if TYPE_CHECKING:
    from gangline.sdk.gpu_usage import GpuUsage
    from gangline.sdk.jobs import Job
    from gangline.sdk.usage import Usage

    UsageByPod = Mapping[tuple[str, str], Usage]

REFRESH_S = 2.0
_MI = 2**20


@click.command("job")
@click.argument("job", default="", shell_complete=completing.jobs)
@namespace_options
@type_option
@choosing_options
@click.option(
    "-i", "--instance", default="", shell_complete=completing.instances, help="Only this replica."
)
@refresh_option
@output_option("table", "wide", "json", "yaml", "name")
def job_command(  # noqa: PLR0913, PLR0917 - one for each flag
    job: str,
    target: Target,
    kind: str,
    all_namespaces: bool,
    selector: str,
    instance: str,
    refresh: bool,
    output: str,
) -> None:
    """Show GPUs, CPU and memory of jobs, or of the replicas of one job."""

    async def show() -> None:
        from gangline.sdk.client import JobClient  # noqa: PLC0415
        from gangline.sdk.gpu_usage import gpu_usage  # noqa: PLC0415
        from gangline.sdk.usage import pod_usage  # noqa: PLC0415

        async with target.connect() as client:
            jobs = JobClient(client, kind)
            namespace = target.namespace_of(client)
            where = None if all_namespaces else namespace
            choice = Choice(job, namespace, selector=selector) if job else None
            history = History()
            while True:
                found = await (choice.found(jobs) if choice else jobs.list(where, selector))
                has_gpus = any(each.allocated_gpus for each in found)
                busy = await gpu_usage(client) if has_gpus else None
                usage = with_gpus(await pod_usage(client, where), busy)
                if refresh and draws_curves():
                    history.note(_cores(found, usage))
                if job and output in {"table", "wide"}:
                    click.echo(replica_usage(found[0], usage, instance, history, busy))
                else:
                    _tell(found, usage, output, all_namespaces, history, busy)
                if not refresh:
                    say_what_is_unseen(jobs)
                    return
                await asyncio.sleep(REFRESH_S)
                click.echo(rule())

    with job_errors():
        run(show())


def rule() -> str:
    """Return the line between two refreshes."""
    return f"{'-' * 30} {now().astimezone():%Y-%m-%d %H:%M:%S} {'-' * 30}"


def _tell(
    jobs: "Sequence[Job]",
    usage: "UsageByPod",
    output: str,
    namespaces: bool,
    history: History,
    busy: "GpuUsage | None",
) -> None:
    ordered = sorted(jobs, key=lambda job: (-job.requested_gpus, job.namespace, job.name))
    if output == "name":
        for job in ordered:
            click.echo(f"{job.kind.trainer}/{job.name}")
    elif not tell(
        [with_gpu_metrics(usage_data(job, usage, now()), busy) for job in ordered], output
    ):
        click.echo(usage_table(ordered, usage, now(), namespaces=namespaces, history=history))


def _cores(jobs: "Sequence[Job]", usage: "UsageByPod") -> dict[Hashable, float]:
    """Return used cores by job and by pod, for the sparklines."""
    found: dict[Hashable, float] = {pod: used.cpu for pod, used in usage.items()}
    for job in jobs:
        if (used := used_by(job, usage)) is not None:
            found[job.uid] = used.cpu
    return found


def with_gpus(usage: "UsageByPod", busy: "GpuUsage | None") -> "UsageByPod":
    """Add the GPU utilization of pods, if an exporter measures it."""
    from gangline.sdk.usage import Usage  # noqa: PLC0415

    if busy is None:
        return usage
    return {
        pod: replace(usage.get(pod, Usage()), gpus=busy.pods.get(pod))
        for pod in {*usage, *busy.pods}
    }


def used_by(job: "Job", usage: "UsageByPod") -> "Usage | None":
    """Return the usage of all replicas of a job; None without measurements."""
    found = [
        usage[job.namespace, replica.name]
        for replica in job.replicas
        if (job.namespace, replica.name) in usage
    ]
    if not found:
        return None
    total = found[0]
    for each in found[1:]:
        total += each
    return total


def usage_table(
    jobs: "Sequence[Job]",
    usage: "UsageByPod",
    at: datetime,
    *,
    namespaces: bool,
    history: History = NOTHING,
) -> str:
    """Return jobs under Arena's header, and the sum over running jobs."""
    head = ["NAME", "STATUS", "TRAINER", "AGE", "GPU(Requested)", "GPU(Allocated)", "NODE"]
    head += ["CPU(Used)", "MEMORY(Used)"]
    measured = _measures_gpus(usage)
    head += ["GPU(Used)"] if measured else []
    head += [CURVE] if history else []
    rows = []
    for job in jobs:
        used = used_by(job, usage)
        row: list[object] = [job.name, job.state, job.kind.trainer.upper(), duration(job, at)]
        row += [job.requested_gpus, job.allocated_gpus, job.chief.node if job.chief else ""]
        row += [*_amounts(used), *([_worth(used)] if measured else [])]
        row += [history.curve(job.uid)] if history else []
        rows.append([job.namespace, *row] if namespaces else row)
    running = [job for job in jobs if job.state == "RUNNING"]
    allocated = sum(job.allocated_gpus for job in running)
    requested = sum(job.requested_gpus for job in running)
    total = f"Total Allocated/Requested GPUs of Training Jobs: {allocated}/{requested}"
    return f"{table(['NAMESPACE', *head] if namespaces else head, rows)}\n\n{total}"


def replica_usage(
    job: "Job",
    usage: "UsageByPod",
    instance: str,
    history: History = NOTHING,
    busy: "GpuUsage | None" = None,
) -> str:
    """Return the replicas of a job with their usage."""
    head = ["NAME", "STATUS", "GPU(Requested)", "NODE"]
    head += DEVICE_HEAD if busy else ()
    head += ["CPU(Used)", "MEMORY(Used)"]
    measured = _measures_gpus(usage)
    head += ["GPU(Used)"] if measured else []
    head += [CURVE] if history else []
    rows = [
        [
            replica.name,
            replica.status,
            replica.gpus,
            replica.node,
            *(device_cells(busy, job.namespace, replica.name) if busy else ()),
            *_amounts(used := usage.get((job.namespace, replica.name))),
            *([_worth(used)] if measured else []),
            *([history.curve((job.namespace, replica.name))] if history else []),
        ]
        for replica in job.replicas
        if not instance or instance in {replica.name, replica.short_name}
    ]
    facts = [("Name", job.name), ("Status", job.state), ("Namespace", job.namespace)]
    facts += [("Trainer", job.kind.trainer.upper()), ("Duration", duration(job, now()))]
    block = "\n".join(f"{name + ':':12}{value}" for name, value in facts)
    total = f"  Allocated/Requested GPUs of Job: {job.allocated_gpus}/{job.requested_gpus}"
    return f"{block}\n\nInstances:\n{table(head, rows, indent='  ')}\n\nGPUs:\n{total}"


def _measures_gpus(usage: "UsageByPod") -> bool:
    return any(used.gpus is not None for used in usage.values())


def _worth(used: "Usage | None") -> str:
    return worth(used.gpus if used else None)


def _amounts(used: "Usage | None") -> tuple[object, object]:
    return ("", "") if used is None else (f"{used.cpu:.2f}", f"{used.memory / _MI:.0f}Mi")


def usage_data(job: "Job", usage: "UsageByPod", at: datetime) -> dict[str, Any]:
    used = used_by(job, usage)
    return job_data(job, at) | {
        "usedCPU": None if used is None else used.cpu,
        "usedMemoryBytes": None if used is None else used.memory,
        "usedGPUs": None if used is None else used.gpus,
    }
