"""Running one component alone, as a real cluster does: operator, scheduler, API server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.cli.event_loop import serve
from gangline.cli.log_format import LEVELS, start_logging
from gangline.cli.options import Target, cluster_options

if TYPE_CHECKING:
    from gangline.kube.client import Client

log_level_option = click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True
)
leader_option = click.option(
    "--leader-elect", is_flag=True, help="Work only while holding the lease: for several copies."
)


@click.command("operator")
@cluster_options
@click.option("--namespace", "-n", "watched", help="Look after this namespace only.")
@click.option(
    "--gang-scheduling",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Make a PodGroup for each job as soon as the cluster knows PodGroups, or never.",
)
@click.option(
    "--scheduler-name",
    default="gangline",
    show_default=True,
    help="Scheduler of pods whose template names none.",
)
@click.option(
    "--pytorch-init-container-image",
    "init_image",
    default="",
    help="Image in which PyTorch workers wait for the master's name; without one they do not.",
)
@click.option("--port", type=int, help="Serve metrics and health here; nothing when not given.")
@leader_option
@log_level_option
def operator_command(  # noqa: PLR0913, PLR0917 - its options
    target: Target,
    watched: str | None,
    gang_scheduling: str,
    scheduler_name: str,
    init_image: str,
    port: int | None,
    leader_elect: bool,
    log_level: str,
) -> None:
    """Run the operator: training jobs become pods, services and pod groups."""
    from gangline.operator.main import run  # noqa: PLC0415
    from gangline.operator.settings import GangScheduling, OperatorSettings  # noqa: PLC0415

    settings = OperatorSettings(
        namespace=watched,
        gang_scheduling=GangScheduling(gang_scheduling),
        scheduler_name=scheduler_name,
        init_image=init_image,
        leader_election=leader_elect,
        port=port,
    )
    start_logging(log_level)
    _serve(target, "gangline-operator", lambda client, stop: run(client, settings, stop))


@click.command("scheduler")
@cluster_options
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=("gangline", "volcano"),
    show_default=True,
    help="Pods with this schedulerName are placed; may be repeated.",
)
@leader_option
@log_level_option
def scheduler_command(
    target: Target, names: tuple[str, ...], leader_elect: bool, log_level: str
) -> None:
    """Run the scheduler: whole gangs of pods get nodes, or none of them does."""
    from gangline.scheduler.main import run  # noqa: PLC0415
    from gangline.scheduler.settings import SchedulerSettings  # noqa: PLC0415

    settings = SchedulerSettings(scheduler_names=frozenset(names), leader_election=leader_elect)
    start_logging(log_level)
    _serve(target, "gangline-scheduler", lambda client, stop: run(client, settings, stop))


@click.command("apiserver")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder that everything is kept in; made when it is missing.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=6443, show_default=True, help="0 takes a free one.")
@log_level_option
def apiserver_command(data_dir: Path, host: str, port: int, log_level: str) -> None:
    """Run the API server of the local cluster, without anything that acts on its objects."""
    from gangline.local.apiserver.server import ApiServer, ServerSettings  # noqa: PLC0415

    start_logging(log_level)
    server = ApiServer(ServerSettings(data=data_dir, host=host, port=port))

    async def until_stopped(stop: asyncio.Event) -> None:
        await server.start()
        click.echo(f"Serving on {server.url}", err=True)
        try:
            await stop.wait()
        finally:
            await server.stop()

    serve(until_stopped)


def _serve(
    target: Target,
    component: str,
    run: "Callable[[Client, asyncio.Event], Awaitable[None]]",
) -> None:
    async def connected(stop: asyncio.Event) -> None:
        async with target.connect(component) as client:
            await run(client, stop)

    serve(connected)
