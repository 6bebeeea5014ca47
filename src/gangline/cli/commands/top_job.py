"""``top job``: requests, allocation and usage of jobs."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.job_selection import (
    JobSelection,
    job_selection_options,
    refresh_option,
    refresh_times,
)
from gangline.cli.params.options import optional_job_argument, output_option, warn_of_unreadable
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.jobs import current_time, format_duration, job_data
from gangline.cli.render.nodes import (
    DEVICE_HEAD,
    NO_HISTORY,
    SparklineHistory,
    add_gpu_metrics,
    device_cells,
    format_gpus,
)
from gangline.cli.render.output import (
    format_table,
    print_result,
    supports_sparklines,
    without_rounding_errors,
)

if TYPE_CHECKING:
    from gangline.sdk.jobs import Job
    from gangline.sdk.usage import GpuUsage, ResourceUsage

    UsageByPod = Mapping[tuple[str, str], ResourceUsage]

_MI = 2**20


@command(
    "job",
    examples="""
        gangline top job
        gangline top job digits -w
        gangline top job -A -l team=vision
    """,
)
@optional_job_argument
@job_command
@job_selection_options
@click.option(
    "-i", "--instance", default="", shell_complete=completers.instances, help="Only this replica."
)
@refresh_option
@output_option()
async def top_job_command(
    job: str,
    cluster: ClusterSession,
    all_namespaces: bool,
    selector: str,
    instance: str,
    refresh: bool,
    output: str,
) -> None:
    """Show GPUs, CPU and memory of jobs, or of the replicas of one job."""
    from gangline.sdk.usage import gpu_usage, pod_usage

    client, jobs = cluster.client, cluster.jobs
    where = cluster.namespace_to_list(all_namespaces)
    choice = JobSelection(job, cluster.namespace, selector=selector) if job else None
    history = SparklineHistory()
    async for _ in refresh_times(refresh):
        jobs_found = await (choice.find_jobs(jobs) if choice else jobs.list(where, selector))
        busy = (
            await gpu_usage(client)
            if any(selected.allocated_gpus for selected in jobs_found)
            else None
        )
        usage = add_gpu_usage(await pod_usage(client, where), busy)
        if refresh and supports_sparklines():
            history.record(_cores(jobs_found, usage))
        if job and output in {"table", "wide"}:
            click.echo(format_replica_usage(jobs_found[0], usage, instance, history, busy))
        else:
            _print_usage(jobs_found, usage, output, all_namespaces, history, busy)
        if not refresh:
            warn_of_unreadable(jobs)


def _print_usage(
    jobs: "Sequence[Job]",
    usage: "UsageByPod",
    output: str,
    namespaces: bool,
    history: SparklineHistory,
    busy: "GpuUsage | None",
) -> None:
    ordered = sorted(jobs, key=lambda job: (-job.requested_gpus, job.namespace, job.name))
    data = [add_gpu_metrics(usage_data(job, usage, current_time()), busy) for job in ordered]
    if not print_result(
        without_rounding_errors(data), output, [job.qualified_name for job in ordered]
    ):
        click.echo(
            format_job_usage(ordered, usage, current_time(), namespaces=namespaces, history=history)
        )


def _cores(jobs: "Sequence[Job]", usage: "UsageByPod") -> dict[Hashable, float]:
    """Return used cores by job and by pod, for the sparklines."""
    cores: dict[Hashable, float] = {pod: used.cpu for pod, used in usage.items()}
    for job in jobs:
        if (used := job_usage(job, usage)) is not None:
            cores[job.uid] = used.cpu
    return cores


def add_gpu_usage(usage: "UsageByPod", busy: "GpuUsage | None") -> "UsageByPod":
    """Add the GPU utilization of pods, if an exporter measures it."""
    from gangline.sdk.usage import ResourceUsage

    if busy is None:
        return usage
    return {
        pod: replace(usage.get(pod, ResourceUsage()), gpus=busy.pods.get(pod))
        for pod in {*usage, *busy.pods}
    }


def job_usage(job: "Job", usage: "UsageByPod") -> "ResourceUsage | None":
    """Return the usage of all replicas of a job; None without measurements."""
    usages = [
        usage[job.namespace, replica.name]
        for replica in job.replicas
        if (job.namespace, replica.name) in usage
    ]
    if not usages:
        return None
    total = usages[0]
    for further in usages[1:]:
        total += further
    return total


def format_job_usage(
    jobs: "Sequence[Job]",
    usage: "UsageByPod",
    at: datetime,
    *,
    namespaces: bool,
    history: SparklineHistory = NO_HISTORY,
) -> str:
    """Return jobs under Arena's header, and the sum over running jobs."""
    head = ["NAME", "STATUS", "TRAINER", "AGE", "GPU(Requested)", "GPU(Allocated)", "NODE"]
    head += ["CPU(Used)", "MEMORY(Used)"]
    measured = _measures_gpus(usage)
    head += ["GPU(Used)"] if measured else []
    lately = history.columns([job.uid for job in jobs])
    head += [column[0] for column in lately]
    rows = []
    for index, job in enumerate(jobs, 1):
        used = job_usage(job, usage)
        row: list[object] = [
            job.name,
            job.state,
            job.kind.trainer.upper(),
            format_duration(job, at),
        ]
        row += [job.requested_gpus, job.allocated_gpus, job.chief.node if job.chief else ""]
        row += [*_cpu_and_memory_cells(used), *([_gpu_cell(used)] if measured else [])]
        row += [column[index] for column in lately]
        rows.append([job.namespace, *row] if namespaces else row)
    running = [job for job in jobs if job.state == "RUNNING"]
    allocated = sum(job.allocated_gpus for job in running)
    requested = sum(job.requested_gpus for job in running)
    total = f"Total Allocated/Requested GPUs of Training Jobs: {allocated}/{requested}"
    return f"{format_table(['NAMESPACE', *head] if namespaces else head, rows)}\n\n{total}"


def format_replica_usage(
    job: "Job",
    usage: "UsageByPod",
    instance: str,
    history: SparklineHistory = NO_HISTORY,
    busy: "GpuUsage | None" = None,
) -> str:
    """Return the replicas of a job with their usage."""
    head = ["NAME", "STATUS", "GPU(Requested)", "NODE"]
    head += DEVICE_HEAD if busy else ()
    head += ["CPU(Used)", "MEMORY(Used)"]
    measured = _measures_gpus(usage)
    head += ["GPU(Used)"] if measured else []
    replicas = [
        replica
        for replica in job.replicas
        if not instance or instance in {replica.name, replica.short_name}
    ]
    lately = history.columns([(job.namespace, replica.name) for replica in replicas])
    head += [column[0] for column in lately]
    rows = [
        [
            replica.name,
            replica.status,
            replica.gpus,
            replica.node,
            *(device_cells(busy, job.namespace, replica.name) if busy else ()),
            *_cpu_and_memory_cells(used := usage.get((job.namespace, replica.name))),
            *([_gpu_cell(used)] if measured else []),
            *(column[index] for column in lately),
        ]
        for index, replica in enumerate(replicas, 1)
    ]
    facts = [("Name", job.name), ("Status", job.state), ("Namespace", job.namespace)]
    facts += [
        ("Trainer", job.kind.trainer.upper()),
        ("Duration", format_duration(job, current_time())),
    ]
    block = "\n".join(f"{name + ':':12}{value}" for name, value in facts)
    total = f"  Allocated/Requested GPUs of Job: {job.allocated_gpus}/{job.requested_gpus}"
    return f"{block}\n\nInstances:\n{format_table(head, rows, indent='  ')}\n\nGPUs:\n{total}"


def _measures_gpus(usage: "UsageByPod") -> bool:
    return any(used.gpus is not None for used in usage.values())


def _gpu_cell(used: "ResourceUsage | None") -> str:
    return format_gpus(used.gpus if used else None)


def _cpu_and_memory_cells(used: "ResourceUsage | None") -> tuple[object, object]:
    return ("", "") if used is None else (f"{used.cpu:.2f}", f"{used.memory / _MI:.0f}Mi")


def usage_data(job: "Job", usage: "UsageByPod", at: datetime) -> dict[str, Any]:
    used = job_usage(job, usage)
    return job_data(job, at) | {
        "usedCPU": None if used is None else used.cpu,
        "usedMemoryBytes": None if used is None else used.memory,
        "usedGPUs": None if used is None else used.gpus,
    }
