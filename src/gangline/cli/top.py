"""``top node`` and the group ``top``: capacity, allocation and usage of nodes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from gangline.cli import completing
from gangline.cli.choosing import refresh_option, selector_option
from gangline.cli.errors import CommandError
from gangline.cli.event_loop import run_async
from gangline.cli.exit_codes import ExitCode
from gangline.cli.node_details import NodeDetails, format_nodes, details_data, read_details
from gangline.cli.node_views import GPU, GpuMode, gpu_totals, node_data, node_table, read_nodes
from gangline.cli.options import cluster_options, output_option
from gangline.cli.output import supports_sparklines, print_status, print_result
from gangline.cli.sparkline import SparklineHistory
from gangline.cli.target import ClusterTarget
from gangline.cli.top_job import REFRESH_INTERVAL_S, job_command, timestamp_line

if TYPE_CHECKING:
    from gangline.kube.client import ApiClient


@click.group("top")
def top_command() -> None:
    """Show capacity, allocation and usage of nodes and jobs."""


top_command.add_command(job_command)

_MODES = {mode[0]: mode for mode in GpuMode}


def _mode(_: click.Context, __: click.Parameter, value: str | None) -> GpuMode | None:
    return None if value is None else GpuMode(_MODES.get(value, value))


@dataclass(frozen=True, slots=True)
class _NodeQuery:
    """Which nodes to show, and how."""

    names: tuple[str, ...]
    mode: GpuMode | None
    details: bool
    output: str
    selector: str = ""


@top_command.command("node")
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=completing.nodes)
@click.option("-d", "--details", is_flag=True, help="Show the pods of each node, and each GPU.")
@click.option(
    "-m",
    "--gpu-mode",
    "mode",
    type=click.Choice([*_MODES, *(mode.value for mode in GpuMode)]),
    callback=_mode,
    help="Only nodes with this GPU mode: n(one), e(xclusive), t(opology), s(hare).",
)
@click.option(
    "--metric",
    "--metrics",
    "metric",
    is_flag=True,
    help="Report nodes whose GPUs are not measured; measurements are always shown.",
)
@refresh_option
@selector_option("nodes")
@cluster_options
@output_option("table", "wide", "json", "yaml", "name")
def node_command(  # noqa: PLR0913, PLR0917 - one for each flag
    names: tuple[str, ...],
    details: bool,
    mode: GpuMode | None,
    metric: bool,
    refresh: bool,
    selector: str,
    target: ClusterTarget,
    output: str,
) -> None:
    """Show GPUs, CPU and memory of each node, and how much is allocated."""
    if names and selector:
        message = f"node {names[0]!r} and --selector {selector!r} exclude each other"
        raise CommandError(message, code=ExitCode.USAGE)
    look = _NodeQuery(names, mode, details, output, selector)

    async def show() -> None:
        history = SparklineHistory()
        async with target.connect() as client:
            while True:
                found = await _load_nodes(client, look)
                if refresh and supports_sparklines():
                    history.record({each.view.name: each.view.cpu_used or 0.0 for each in found})
                _print_nodes(found, look, history)
                if metric:
                    _warn_of_unmeasured(found)
                if not refresh:
                    return
                await asyncio.sleep(REFRESH_INTERVAL_S)
                click.echo(timestamp_line())

    run_async(show())


def _warn_of_unmeasured(nodes: Sequence[NodeDetails]) -> None:
    having = [each for each in nodes if each.view.total.get(GPU)]
    silent = [each.view.name for each in having if not each.devices]
    if not having:
        print_status("None of these nodes has GPUs.")
    elif silent:
        few = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
        print_status(f"No measurements of GPUs on {few}: no DCGM exporter answers there.")


def _print_nodes(nodes: Sequence[NodeDetails], look: _NodeQuery, history: SparklineHistory) -> None:
    views = [each.view for each in nodes]
    data: Callable[[NodeDetails], object] = (
        details_data if look.details else lambda each: node_data(each.view)
    )
    if look.output == "name":
        for view in views:
            click.echo(f"node/{view.name}")
    elif print_result([data(each) for each in nodes], look.output):
        return
    else:
        if look.details:
            click.echo(format_nodes(nodes))
        else:
            click.echo(node_table(views, history, modes=look.output == "wide"))
        if sums := gpu_totals(views):
            click.echo(sums)


async def _load_nodes(client: "ApiClient", look: _NodeQuery) -> list[NodeDetails]:
    from gangline.api.resources import NODES, PODS  # noqa: PLC0415
    from gangline.sdk.gpu_usage import gpu_usage  # noqa: PLC0415
    from gangline.sdk.usage import node_usage  # noqa: PLC0415

    if look.names:
        nodes = [await client.get(NODES, name) for name in look.names]
        pods = (await client.list(PODS)).items
    else:
        node_list, pod_list = await asyncio.gather(
            client.list(NODES, labels=look.selector), client.list(PODS)
        )
        nodes, pods = node_list.items, pod_list.items
    usage = await node_usage(client)
    views = sorted(read_nodes(nodes, pods), key=lambda view: view.name)
    views = [view for view in views if look.mode in {None, view.mode}]
    busy = await gpu_usage(client) if any(view.total.get(GPU) for view in views) else None
    measured = [
        replace(
            view,
            cpu_used=used.cpu if (used := usage.get(("", view.name))) else None,
            memory_used=used.memory if used else None,
            gpus_used=busy.nodes.get(view.name) if busy else None,
        )
        for view in views
    ]
    return read_details(measured, pods, busy)
