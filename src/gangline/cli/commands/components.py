"""Commands that run one component alone, as in a real cluster: ``scheduler``, ``apiserver``."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.component_logging import logging_options, start_logging
from gangline.cli.errors import CommandError
from gangline.cli.event_loop import serve_component
from gangline.cli.params.command import command, section
from gangline.cli.params.component_options import (
    BindAddress,
    audit_options,
    audit_settings,
    durability_option,
    election_timing_options,
    encryption_key_option,
    take_election_timing,
)
from gangline.cli.params.options import cluster_options
from gangline.cli.params.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.kube.probes import Address

leader_option = click.option(
    "--leader-elect", is_flag=True, help="Work only while holding the lease: for several copies."
)


@command(
    "scheduler",
    examples="""
        gangline scheduler --leader-elect
        gangline scheduler --configuration volcano-scheduler.conf
    """,
)
@cluster_options
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=("gangline", "volcano"),
    show_default=True,
    help="Schedule pods with this schedulerName; may be repeated.",
)
@click.option(
    "--configuration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Volcano's configuration file: actions, plugins and their arguments.",
)
@leader_option
@section("Leader election", *election_timing_options(click.option))
@click.option(
    "--metrics-bind-address",
    type=BindAddress(),
    default="0",
    show_default=True,
    help="Address of the metrics server; 0 disables it.",
)
@click.option(
    "--health-probe-bind-address",
    type=BindAddress(),
    default="0",
    show_default=True,
    help="Address of the health probes; 0 disables them.",
)
@click.option(
    "--save-wait",
    "save_wait_s",
    type=click.FloatRange(0, 300),
    default=30.0,
    show_default=True,
    help="Seconds that an evicted gang may take to save a checkpoint before; 0 asks for none.",
)
@click.option(
    "--forecast-interval",
    "forecast_interval_s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Minimal seconds between forecasts of the starts of pending gangs; 0 disables them.",
)
@logging_options("GANGLINE_SCHEDULER")
def scheduler_command(  # noqa: PLR0913, PLR0917
    target: ClusterTarget,
    names: tuple[str, ...],
    configuration: Path | None,
    leader_elect: bool,
    metrics_bind_address: "Address | None",
    health_probe_bind_address: "Address | None",
    save_wait_s: float,
    forecast_interval_s: float,
    log_level: str,
    log_format: str,
    **timing: Any,
) -> None:
    """Run the scheduler: all pods of a gang get nodes, or none of them."""
    from gangline.scheduler.loop import run
    from gangline.scheduler.settings import SchedulerSettings
    from gangline.scheduler.volcano_config import ConfigurationError, read_file

    settings = SchedulerSettings(
        scheduler_names=frozenset(names),
        leader_election=leader_elect,
        leader_election_timing=take_election_timing(timing),
        metrics_address=metrics_bind_address,
        health_address=health_probe_bind_address,
        save_wait_s=save_wait_s,
        forecast_interval_s=forecast_interval_s,
    )
    if configuration is not None:
        try:
            settings = read_file(configuration).apply_to(settings)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
    start_logging(log_level, form=log_format)
    target.serve("gangline-scheduler", lambda client, stop: run(client, settings, stop))


@command("apiserver", examples="gangline apiserver --data-dir /var/lib/gangline --port 6443")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data folder; created if it does not exist.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=int, default=6443, show_default=True, help="Port; 0 selects a free port."
)
@durability_option
@encryption_key_option
@audit_options
@logging_options("GANGLINE_APISERVER")
def apiserver_command(
    data_dir: Path,
    host: str,
    port: int,
    durability: str,
    encryption_key: Path | None,
    log_level: str,
    log_format: str,
    **audit: Any,
) -> None:
    """Run the API server of the embedded cluster, without controllers."""
    from gangline.local.apiserver.auth.pki import CertificateError
    from gangline.local.apiserver.memory import configure_allocator
    from gangline.local.apiserver.server import ApiServer, ApiServerSettings
    from gangline.local.apiserver.storage.durable_files import Durability
    from gangline.local.apiserver.storage.encryption import EncryptionKeyError
    from gangline.local.apiserver.storage.sqlite import DatabaseError

    start_logging(log_level, form=log_format)
    settings = ApiServerSettings(
        data=data_dir,
        host=host,
        port=port,
        durability=Durability(durability),
        encryption_key=encryption_key,
        audit=audit_settings(**audit),
    )
    configure_allocator()
    server = ApiServer(settings)

    async def until_stopped(stop: asyncio.Event) -> None:
        try:
            await server.start()
        except (CertificateError, DatabaseError, EncryptionKeyError) as error:
            raise CommandError(f"the API server cannot start: {error}") from error
        click.echo(f"Serving on {server.url}", err=True)
        try:
            await stop.wait()
        finally:
            await server.stop()

    serve_component(until_stopped)
