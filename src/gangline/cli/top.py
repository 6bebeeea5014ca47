"""``top node`` and ``top job``: what nodes have, what is given to pods, what they use of it."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.event_loop import run
from gangline.cli.options import Target, cluster_options, output_option
from gangline.cli.output import draws_curves, table, tell
from gangline.cli.sparkline import CURVE, NOTHING, History
from gangline.cli.top_job import REFRESH_S, job_command, rule

if TYPE_CHECKING:
    from gangline.api.core import Node
    from gangline.api.pod import Pod
    from gangline.kube.client import Client

GPU = "nvidia.com/gpu"
_ROLE = "node-role.kubernetes.io/"
_RULE_WIDTH = 99


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a row."""

    name: str
    address: str
    role: str
    status: str
    total: Mapping[str, int]
    allocated: Mapping[str, int]
    cpu_used: float | None = None
    """Cores; None where the cluster does not measure."""
    memory_used: float | None = None
    """Bytes."""
    gpus_used: float | None = None
    """GPUs' worth of work; None where nothing measures it."""


@click.group("top")
def top_command() -> None:
    """Show what nodes and jobs have, and what of it is in use."""


top_command.add_command(job_command)


@top_command.command("node")
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=completing.nodes)
@click.option("-r", "--refresh", is_flag=True, help="Print it again every two seconds.")
@cluster_options
@output_option("table", "wide", "json", "yaml", "name")
def node_command(names: tuple[str, ...], refresh: bool, target: Target, output: str) -> None:
    """Show each node's GPUs, CPU and memory, and how much is given to pods."""

    async def show() -> None:
        history = History()
        async with target.connect() as client:
            while True:
                views = await _views(client, names)
                if refresh and draws_curves():
                    history.note({view.name: view.cpu_used or 0.0 for view in views})
                _tell(views, output, history)
                if not refresh:
                    return
                await asyncio.sleep(REFRESH_S)
                click.echo(rule())

    run(show())


def _tell(views: Sequence[NodeView], output: str, history: History) -> None:
    if output == "name":
        for view in views:
            click.echo(f"node/{view.name}")
    elif not tell([_data(view) for view in views], output):
        click.echo(_table(views, history))
        if footer := _footer(views):
            click.echo(footer)


async def _views(client: "Client", names: Sequence[str]) -> list[NodeView]:
    from gangline.api.resources import NODES, PODS  # noqa: PLC0415
    from gangline.sdk.gpu_usage import gpu_usage  # noqa: PLC0415
    from gangline.sdk.usage import node_usage  # noqa: PLC0415

    if names:
        nodes = [await client.get(NODES, name) for name in names]
        pods = (await client.list(PODS)).items
    else:
        node_list, pod_list = await asyncio.gather(client.list(NODES), client.list(PODS))
        nodes, pods = node_list.items, pod_list.items
    usage = await node_usage(client)
    views = sorted(read_nodes(nodes, pods), key=lambda view: view.name)
    busy = await gpu_usage(client) if any(view.total.get(GPU) for view in views) else None
    return [
        replace(
            view,
            cpu_used=used.cpu if (used := usage.get(("", view.name))) else None,
            memory_used=used.memory if used else None,
            gpus_used=busy.nodes.get(view.name) if busy else None,
        )
        for view in views
    ]


def read_nodes(nodes: "Sequence[Node]", pods: "Sequence[Pod]") -> list[NodeView]:
    """Return nodes with what is given to the pods on them that have not ended."""
    from gangline.api.conditions import is_true  # noqa: PLC0415
    from gangline.api.resourcelist import amounts, pod_request, total  # noqa: PLC0415

    given: dict[str, list[Mapping[str, int]]] = defaultdict(list)
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}:
            given[pod.spec.node_name].append({**pod_request(pod.spec), "pods": 1})
    views = []
    for node in nodes:
        roles = [key.removeprefix(_ROLE) for key in node.metadata.labels if key.startswith(_ROLE)]
        ready = "Ready" if is_true(node.status.conditions, "Ready") else "NotReady"
        addresses = {each.type: each.address for each in node.status.addresses}
        views.append(
            NodeView(
                name=node.metadata.name,
                address=addresses.get("InternalIP", ""),
                role=",".join(sorted(roles)) or "<none>",
                status=f"{ready},SchedulingDisabled" if node.spec.unschedulable else ready,
                total=amounts(node.status.allocatable),
                allocated=total(given[node.metadata.name]),
            )
        )
    return views


def _table(views: Sequence[NodeView], history: History = NOTHING) -> str:
    head = ["NAME", "IPADDRESS", "ROLE", "STATUS", "GPU(Total)", "GPU(Allocated)"]
    head += ["CPU(Allocated)", "CPU(Used)", "MEMORY(Allocated)", "MEMORY(Used)", "PODS"]
    measured = any(view.gpus_used is not None for view in views)
    head += ["GPU(Used)"] if measured else []
    head += [CURVE] if history else []
    rows = [
        [
            view.name,
            view.address,
            view.role,
            view.status,
            view.total.get(GPU, 0),
            view.allocated.get(GPU, 0),
            _share(view, "cpu", 1000, ""),
            "" if view.cpu_used is None else f"{view.cpu_used:.2f}",
            _share(view, "memory", 2**30, "Gi"),
            "" if view.memory_used is None else f"{view.memory_used / 2**30:.1f}Gi",
            f"{view.allocated.get('pods', 0)}/{view.total.get('pods', 0)}",
            *([_worth(view.gpus_used)] if measured else []),
            *([history.curve(view.name)] if history else []),
        ]
        for view in views
    ]
    return table(head, rows)


def _worth(gpus: float | None) -> str:
    return "" if gpus is None else f"{gpus:.2f}"


def _share(view: NodeView, resource: str, unit: int, suffix: str) -> str:
    allocated, total = view.allocated.get(resource, 0), view.total.get(resource, 0)
    return f"{round(allocated / unit, 1):g}/{round(total / unit, 1):g}{suffix}"


def _footer(views: Sequence[NodeView]) -> str:
    total = sum(view.total.get(GPU, 0) for view in views)
    allocated = sum(view.allocated.get(GPU, 0) for view in views)
    if not total:
        return ""
    share = f"{allocated}/{total} ({100 * allocated / total:.1f}%)"
    return f"{'-' * _RULE_WIDTH}\nAllocated/Total GPUs In Cluster:\n{share}"


def _data(view: NodeView) -> dict[str, Any]:
    return {
        "name": view.name,
        "ip": view.address,
        "role": view.role,
        "status": view.status,
        "totalGPUs": view.total.get(GPU, 0),
        "allocatedGPUs": view.allocated.get(GPU, 0),
        "totalMilliCPU": view.total.get("cpu", 0),
        "allocatedMilliCPU": view.allocated.get("cpu", 0),
        "totalMemoryBytes": view.total.get("memory", 0),
        "allocatedMemoryBytes": view.allocated.get("memory", 0),
        "usedCPU": view.cpu_used,
        "usedMemoryBytes": view.memory_used,
        "usedGPUs": view.gpus_used,
        "totalPods": view.total.get("pods", 0),
        "allocatedPods": view.allocated.get("pods", 0),
    }
