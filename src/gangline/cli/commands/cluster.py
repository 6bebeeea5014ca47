"""``up``, ``down``, ``status``: the embedded cluster on this machine."""

import asyncio
import shlex
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gangline.cli.component_logging import LEVELS, start_logging
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import command, section
from gangline.cli.params.component_options import (
    audit_options,
    durability_option,
    encryption_key_option,
)
from gangline.cli.params.options import debug_option

if TYPE_CHECKING:
    from gangline.local.cluster import ClusterReady, Component
    from gangline.local.daemon import ClusterStatus
    from gangline.local.settings import ClusterSettings

_DASHBOARD_TIMEOUT_S = 15.0

name_option = click.option(
    "--name",
    default="default",
    show_default=True,
    help="Name of the cluster; several may run at the same time.",
)


@command(
    "up",
    examples="""
        gangline up --detach
        gangline up -d --nodes 3 --cpus 4 --memory 8Gi --gpus 8
        gangline up -d --name second --brain
    """,
)
@name_option
@click.option(
    "--detach", "-d", is_flag=True, help="Run in the background; return when the nodes are ready."
)
@click.option(
    "--nodes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of nodes."
)
@section(
    "Nodes",
    click.option(
        "--cpus", type=float, help="Processors of each node; default: a share of the machine."
    ),
    click.option(
        "--memory", help="Memory of each node, such as 8Gi; default: a share of the machine."
    ),
    click.option(
        "--gpus", type=click.IntRange(0), help="GPUs of each node; missing ones are simulated."
    ),
    click.option(
        "--resource",
        "resources",
        multiple=True,
        metavar="NAME=COUNT",
        help="Extended resource of each node, only counted; may be repeated.",
    ),
    click.option(
        "--image-map",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="File that maps images to local environments.",
    ),
    click.option(
        "--network",
        type=click.Choice(["auto", "bridge", "host"]),
        default="auto",
        show_default=True,
        help="A network for each pod (bridge; needs root), or the host network.",
    ),
    click.option("--pod-cidr", help="Address range of pods and services."),
    click.option(
        "--node-silence",
        "node_silence_s",
        type=click.FloatRange(min=0.1),
        default=40.0,
        show_default=True,
        help="Seconds without heartbeat until a node counts as lost.",
    ),
    click.option(
        "--heartbeat",
        "heartbeat_s",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Seconds between heartbeats of a node; well below --node-silence.",
    ),
    click.option(
        "--pods", type=click.IntRange(1), default=110, help="Limit of pods on a node.", hidden=True
    ),
)
@section(
    "API server and storage",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 selects a free port."),
    durability_option,
    encryption_key_option,
    click.option(
        "--shutdown-grace",
        "shutdown_grace_s",
        type=click.FloatRange(0.0),
        default=2.0,
        show_default=True,
        help="Seconds that pods get to end when the cluster stops.",
    ),
)
@section(
    "Components",
    click.option(
        "--without",
        multiple=True,
        type=click.Choice(["operator", "scheduler"]),
        help="Leave out a component that runs separately; may be repeated.",
    ),
    click.option(
        "--webhook",
        type=click.Choice(["on", "off"]),
        default="on",
        show_default=True,
        help="Refuse invalid jobs at submission (on), or report errors in their status (off).",
    ),
    click.option(
        "--queue-access/--no-queue-access",
        default=False,
        show_default=True,
        help="Require the verb 'use' on the queue of a job; needs --webhook on.",
    ),
    click.option(
        "--pod-groups",
        type=click.Choice(["volcano", "kubernetes"]),
        default="volcano",
        show_default=True,
        help="PodGroups of jobs: those of Volcano, or of scheduling.k8s.io.",
    ),
    click.option(
        "--brain/--no-brain",
        default=False,
        show_default=True,
        help="Run the Brain: it learns from ended jobs and advises running ones.",
    ),
    click.option(
        "--record/--no-record",
        default=None,
        help="Record jobs for their pages and 'gangline history'; on if gangline[brain] is there.",
    ),
    click.option(
        "--dashboard/--no-dashboard",
        default=False,
        show_default=True,
        help="Run the dashboard too, and print its address.",
    ),
)
@audit_options
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="Least level of messages that are printed.",
)
@debug_option
@click.pass_context
def up_command(
    context: click.Context,
    /,
    without: tuple[str, ...],
    webhook: str,
    detach: bool,
    log_level: str,
    durability: str,
    **options: Any,
) -> None:
    """Start a cluster on this machine: API server, nodes, operator, scheduler.

    It runs until Ctrl-C, or with --detach until 'gangline down'. Its jobs and all other objects are
    stored, and continue when it is started again.
    """
    from gangline.cli.embedded_components import embedded_components
    from gangline.local.apiserver.storage.durable_files import Durability
    from gangline.local.settings import ClusterSettings

    queue_access: bool = options.pop("queue_access")
    brain: bool = options.pop("brain")
    record: bool | None = options.pop("record")
    dashboard: bool = options.pop("dashboard")
    pod_groups: str = options.pop("pod_groups")
    settings = ClusterSettings(durability=Durability(durability), **options)
    _check_image_map(settings)
    if queue_access and webhook == "off":
        raise click.UsageError("--queue-access needs --webhook on")
    if brain and record is False:
        raise click.UsageError("--brain records jobs: leave out --no-record")
    if brain or record:
        import gangline.brain.store.engine
    if dashboard:
        import gangline.dashboard.rendering  # noqa: F401 - as above
    records = brain or record or (record is None and _has_database_packages())
    if detach:
        _start_in_background(settings, _repeated_arguments(context), dashboard=dashboard)
    else:
        start_logging(log_level)
        database = f"sqlite:///{settings.directory.folder / 'brain.db'}" if records else ""
        parts = embedded_components(
            frozenset(without),
            webhook=webhook == "on",
            queue_access=queue_access,
            pod_groups=pod_groups,
            brain_database=database,
            brain_advises=brain,
            dashboard_folder=settings.directory.folder if dashboard else None,
        )
        _run(settings, parts, dashboard=dashboard)


@command(
    "down",
    examples="""
        gangline down
        gangline down --name second
    """,
)
@name_option
@debug_option
def down_command(name: str) -> None:
    """Stop the cluster that 'up' has started. Its stored objects remain."""
    from gangline.kube.config.embedded import running_clusters
    from gangline.local.daemon import stop_cluster
    from gangline.local.directory import ClusterDirectory, default_home

    note = stop_cluster(ClusterDirectory(default_home(), name))
    if note:
        click.echo(f"Cluster {name} is stopped.")
        return
    click.echo(f"Cluster {name} was not running.")
    for other in running_clusters(default_home()):
        click.echo(f"'gangline down --name {other.name}' stops {other.name}, which runs.")


@command(
    "status",
    examples="""
        gangline status
        gangline status --name second
    """,
)
@name_option
@debug_option
def status_command(name: str) -> int:
    """Show whether the cluster runs, its nodes, and how many pods it has."""
    from gangline.kube.config.embedded import running_clusters
    from gangline.local.daemon import cluster_status
    from gangline.local.directory import ClusterDirectory, default_home

    status = asyncio.run(cluster_status(ClusterDirectory(default_home(), name)))
    for line in _status_lines(status):
        click.echo(line)
    if not status.running:
        for other in running_clusters(default_home()):
            click.echo(f"'gangline status --name {other.name}' shows {other.name}, which runs.")
    return ExitCode.DONE if status.reachable else ExitCode.UNREACHABLE


def _has_database_packages() -> bool:
    """Whether the extra ``brain`` is installed; found without importing it."""
    return all(find_spec(package) for package in ("sqlalchemy", "alembic"))


def _check_image_map(settings: "ClusterSettings") -> None:
    """Refuse an invalid file before anything starts; nodes read it only after everything else is
    up.
    """
    if settings.image_map is None:
        return
    from gangline.local.kubelet.containers.images import ImageMapError, load_image_map

    try:
        load_image_map(settings.image_map)
    except ImageMapError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error


def _run(settings: "ClusterSettings", parts: "list[Component]", *, dashboard: bool) -> None:
    began = time.monotonic()
    from gangline.local.cluster import run_foreground
    from gangline.local.kubelet.runtime.isolation import detect_isolation

    def announce(ready: "ClusterReady") -> None:
        click.echo(_welcome(ready.url, ready.kubeconfig, time.monotonic() - began))
        click.echo("Ctrl-C stops it; its objects remain stored.")
        if dashboard:
            click.echo("'gangline dashboard' opens its dashboard.")
        for note in filter(None, (ready.limitation, detect_isolation().limitation)):
            click.echo(f"Note: {note}", err=True)

    run_foreground(settings, parts, announce)


def _start_in_background(
    settings: "ClusterSettings", arguments: list[str], *, dashboard: bool
) -> None:
    from gangline.local.daemon import start_detached, wait_nodes_ready

    began = time.monotonic()
    note = start_detached(settings, [sys.executable, "-m", "gangline", "up", *arguments])
    home = settings.directory
    if not wait_nodes_ready(home, settings.nodes):
        click.echo("Note: not all nodes are ready yet; 'gangline status' shows them.", err=True)
    kubeconfig = home.default_kubeconfig if settings.name == "default" else home.kubeconfig
    click.echo(_welcome(note.url, str(kubeconfig), time.monotonic() - began))
    if dashboard and (address := _wait_for_dashboard(home.folder)):
        click.echo(f"Dashboard: {address}")
    stop = (
        "gangline down" if settings.name == "default" else f"gangline down --name {settings.name}"
    )
    click.echo(f"'{stop}' stops it; its log is {home.log}.")


def _wait_for_dashboard(folder: Path) -> str:
    """Return the address of the dashboard when it answers; empty if it does not in time."""
    from gangline.dashboard.address_file import read_address

    until = time.monotonic() + _DASHBOARD_TIMEOUT_S
    while not (address := read_address(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return address


def _repeated_arguments(context: click.Context) -> list[str]:
    """Return the arguments of this command without ``--detach``."""
    arguments: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        value = context.params.get(name)
        if not given or name == "detach":
            continue
        flag = max(parameter.opts, key=len)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            off = max(parameter.secondary_opts, key=len, default="")
            arguments += [flag] if value else [off] if off else []
        else:
            values = value if isinstance(value, tuple) else (value,)
            arguments += [part for item in values for part in (flag, str(item))]
    return arguments


def _welcome(url: str, kubeconfig: str, took_s: float) -> str:
    return (
        f"Cluster is up at {url} after {took_s:.1f} s.\n"
        "  gangline submit -f job.yaml     starts a training job\n"
        "  gangline list                   shows the jobs\n"
        f"  export KUBECONFIG={shlex.quote(str(kubeconfig))}   makes kubectl use it"
    )


def _status_lines(status: "ClusterStatus") -> Iterator[str]:
    if not status.running:
        yield f"Cluster {status.name} is not running; 'gangline up' starts it."
        return
    since = f"{status.since:%Y-%m-%d %H:%M:%S} UTC" if status.since else "?"
    yield f"Cluster:     {status.name}, process {status.pid}, since {since}"
    yield f"API server:  {status.url}" + ("" if status.reachable else " (does not answer)")
    yield f"Kubeconfig:  {status.kubeconfig}"
    if status.reachable:
        nodes = ", ".join(
            f"{name}{'' if ready else ' (not ready)'}" for name, ready in status.nodes
        )
        pods = ", ".join(f"{count} {phase.lower()}" for phase, count in status.pods)
        yield f"Nodes:       {nodes or 'none'}"
        yield f"Pods:        {pods or 'none'}"
