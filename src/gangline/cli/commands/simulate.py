"""``gangline simulate``: decisions of the scheduler over a trace of jobs, on virtual time."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from gangline.cli.params.command import command
from gangline.cli.render.output import format_table

if TYPE_CHECKING:
    from gangline.scheduler.settings import SchedulerSettings

READABLE = click.Path(path_type=Path, exists=True, dir_okay=False)


class SimulateFlags(TypedDict):
    """Options of the command."""

    described: Path | None
    configuration: Path | None
    nodes: int
    gpus: int
    shape: str
    jobs: int
    load: float
    seed: int
    quantum: float
    save_wait_s: float
    learned: bool
    check: bool


@command(
    "simulate",
    examples="""
        gangline simulate --nodes 16 --gpus 8 --jobs 500
        gangline simulate trace.csv --cluster cluster.yaml
        gangline simulate --config volcano-scheduler.conf --shape helios
    """,
)
@click.argument("trace", type=READABLE, required=False)
@click.option("--cluster", "described", type=READABLE, help="Nodes and queues, as YAML or JSON.")
@click.option(
    "--config",
    "configuration",
    type=READABLE,
    help="The scheduler's configuration file, as for 'gangline scheduler --configuration'.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Number of nodes without --cluster.",
)
@click.option(
    "--gpus",
    type=click.IntRange(0, 1000),
    default=8,
    show_default=True,
    help="GPUs of each node.",
)
@click.option(
    "--shape",
    type=click.Choice(["philly", "helios", "pai"]),
    default="philly",
    show_default=True,
    help="Without TRACE: generate jobs with the statistics of this cluster.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 10_000_000),
    default=2000,
    show_default=True,
    help="Number of generated jobs.",
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    default=0.9,
    show_default=True,
    help="Load of the cluster by generated jobs.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the generated jobs.")
@click.option(
    "--quantum",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="Interval of scheduling cycles in seconds.",
)
@click.option(
    "--save-wait",
    "save_wait_s",
    type=click.FloatRange(0, 300),
    default=30.0,
    show_default=True,
    help="Seconds that a job with step_s may take to save before an eviction; 0 asks for none.",
)
@click.option("--learned-run-times", "learned", is_flag=True, hidden=True)
@click.option("--check", is_flag=True, hidden=True)
def simulate_command(trace: Path | None, **flags: Unpack[SimulateFlags]) -> None:
    """Run the scheduler over TRACE (CSV or JSON) and print the result.

    A trace has the columns arrival, duration and size, and may have name, minimum, cpu, memory,
    gpu, queue, priority, fails_after, checkpoint_every, step_s and save_s.
    """
    from gangline.api.volcano.scheduling import DEFAULT_QUEUE
    from gangline.scheduler.simulate import trace as clusters
    from gangline.scheduler.simulate.engine import Simulation
    from gangline.scheduler.simulate.report import (
        result_rows,
        summarize,
        usage_chart,
        wait_rows,
    )
    from gangline.scheduler.simulate.trace import (
        TRACE_SHAPES,
        TraceError,
        generate_trace,
        read_trace,
    )

    settings = _settings(flags["configuration"], _removed_flags(flags))
    try:
        described = flags["described"]
        units = max(1, flags["gpus"])
        cluster = (
            clusters.read_cluster(described)
            if described
            else clusters.uniform_cluster(
                flags["nodes"], 16 * units, f"{64 * units}Gi", flags["gpus"]
            )
        )
        queues = [queue.name for queue in cluster.queues] or ["default"]
        shape = TRACE_SHAPES[flags["shape"]]
        arriving = (
            read_trace(trace)
            if trace
            else generate_trace(shape, flags["jobs"], cluster, flags["load"], flags["seed"], queues)
        )
    except TraceError as error:
        raise click.UsageError(str(error)) from error
    known = {DEFAULT_QUEUE, *queues}
    if lost := next((job for job in arriving if job.queue not in known), None):
        raise click.UsageError(
            f"{trace}: job {lost.name}: there is no queue {lost.queue!r}; the queues are "
            f"{', '.join(sorted(known))}. --cluster FILE describes others"
        )
    quantum, weights = flags["quantum"], settings.weights
    simulation = Simulation(
        cluster, arriving, settings.policy, (), quantum, weights, save_wait_s=flags["save_wait_s"]
    )
    history = simulation.run()
    summary = summarize(history, cluster)
    click.echo(format_table(("WHAT", "FIGURE"), result_rows(summary)))
    click.echo()
    click.echo(format_table(("WAITED", "JOBS", "MEDIAN", "P95", "LONGEST"), wait_rows(summary)))
    click.echo()
    resource = "nvidia.com/gpu" if summary.utilisation.get("nvidia.com/gpu") else "cpu"
    total = sum(dict(node.allocatable).get(resource, 0) for node in cluster.nodes)
    click.echo(usage_chart(history.samples, resource, total))


def _removed_flags(flags: SimulateFlags) -> Iterator[str]:
    if flags["learned"]:
        yield "--learned-run-times: it is not supported any more"
    if flags["check"]:
        yield "--check: Gangline's own tests check the decisions"


def _settings(path: Path | None, removed: Iterable[str]) -> "SchedulerSettings":
    """Return the settings of the scheduler; warn about settings without effect in a simulation."""
    from gangline.scheduler.settings import SchedulerSettings
    from gangline.scheduler.volcano_config import ConfigurationError, read_file

    settings = SchedulerSettings()
    if path is not None:
        try:
            settings = read_file(path).apply_to(settings)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
    ignored = [*settings.ignored_settings, *_settings_without_effect(settings), *removed]
    if ignored:
        source = f"{path}: " if path is not None else ""
        click.echo(f"{source}settings without effect: {'; '.join(ignored)}", err=True)
    return settings


def _settings_without_effect(settings: "SchedulerSettings") -> Iterator[str]:
    from gangline.scheduler.queueing.overcommit import DEFAULT_FACTOR

    if settings.hierarchical:
        yield "enableHierarchy of plugin 'drf': the cluster file defines the queue hierarchy"
    if settings.fairness.namespaces:
        yield "enableNamespaceOrder of plugin 'drf': all jobs of a trace have one namespace"
    if settings.admission.factors or settings.admission.factor not in {None, DEFAULT_FACTOR}:
        yield "overcommit-factor of plugin 'overcommit': jobs have their pods when they arrive"
    if settings.weights.images:
        yield "imagelocality.weight of plugin 'nodeorder': jobs of a trace have no images"
