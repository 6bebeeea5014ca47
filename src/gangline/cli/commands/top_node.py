"""``top node`` and the group ``top``: capacity, allocation and usage of nodes.

With ``-d`` each node is a block with the pods on it and its GPUs one by one. Blocks and columns
are Arena's; the job of each pod and its other requests follow.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.figures import plain_number
from gangline.api.resource_list import GPU
from gangline.cli.commands.top_job import top_job_command
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import group
from gangline.cli.params.job_selection import refresh_option, refresh_times, selector_option
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, cluster_command
from gangline.cli.render.nodes import (
    SparklineHistory,
    format_duty_cycle,
    format_gpus,
    format_share,
    format_used,
    gpu_totals,
    node_data,
    node_table,
    pod_devices,
)
from gangline.cli.render.output import (
    format_table,
    print_result,
    print_status,
    print_text,
    rule,
    supports_sparklines,
    without_rounding_errors,
)
from gangline.sdk.nodes import GpuMode, NodeRow, read_nodes

if TYPE_CHECKING:
    from gangline.api.core.pod import Pod
    from gangline.kube.client.client import ApiClient
    from gangline.sdk.usage import GpuDevice, GpuUsage


_GI = 2**30
_LABEL = 15
_RULE_WIDTH = 89

_DESCRIPTIONS = {
    GpuMode.NONE: "The node has no GPUs.",
    GpuMode.EXCLUSIVE: "Each GPU is allocated to one pod.",
    GpuMode.TOPOLOGY: "Each GPU is allocated to one pod, selected by GPU topology.",
    GpuMode.SHARE: "Pods share the memory of GPUs.",
}


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod on a node that has GPUs or belongs to a job."""

    namespace: str
    name: str
    status: str
    job: str
    """Kind and name, such as ``pytorchjob/digits``; empty for a pod without job."""
    gpus: int
    milli_cpu: int
    memory_bytes: int
    gpus_used: float | None = None
    gpu_indexes: tuple[str, ...] = ()
    """Indexes of the pod's GPUs; empty if no exporter measures them."""


@dataclass(frozen=True, slots=True)
class NodeDetails:
    """A node with its pods and GPUs."""

    view: NodeRow
    instances: tuple[NodePod, ...]
    devices: "tuple[GpuDevice, ...]" = ()
    """GPUs that an exporter measures."""


def read_details(
    views: Iterable[NodeRow], pods: "Iterable[Pod]", busy: "GpuUsage | None"
) -> list[NodeDetails]:
    """Return nodes with the pods on them that have not ended; pods with most GPUs come first."""
    on: dict[str, list[NodePod]] = {view.name: [] for view in views}
    for pod in pods:
        if pod.spec.node_name in on and pod.status.phase not in TERMINAL_PHASES:
            instance = _read_node_pod(pod, busy)
            if instance.gpus or instance.job:
                on[pod.spec.node_name].append(instance)
    devices = busy.devices if busy else {}
    return [
        NodeDetails(
            view,
            tuple(
                sorted(
                    on[view.name], key=lambda placed: (-placed.gpus, placed.namespace, placed.name)
                )
            ),
            tuple(devices.get(view.name, ())),
        )
        for view in views
    ]


def _read_node_pod(pod: "Pod", busy: "GpuUsage | None") -> NodePod:
    from gangline.api.resource_list import pod_request
    from gangline.sdk.jobs import JOB_NAME_LABEL, pod_status_text

    requests = pod_request(pod.spec)
    key = (pod.metadata.namespace, pod.metadata.name)
    name, owner = pod.metadata.labels.get(JOB_NAME_LABEL, ""), pod.metadata.controller
    return NodePod(
        *key,
        status=pod_status_text(pod),
        job=f"{owner.kind.lower()}/{name}" if name and owner else name,
        gpus=requests.get(GPU, 0),
        milli_cpu=requests.get("cpu", 0),
        memory_bytes=requests.get("memory", 0),
        gpus_used=busy.pods.get(key) if busy else None,
        gpu_indexes=tuple(pod_device.index for pod_device in pod_devices(busy, *key)),
    )


def format_nodes(nodes: Iterable[NodeDetails]) -> str:
    """Return one block of text for each node."""
    return f"\n\n{rule(_RULE_WIDTH)}\n\n".join(format_node(node) for node in nodes)


def format_node(details: NodeDetails) -> str:
    view = details.view
    facts = [
        ("Name", view.name),
        ("Status", view.status),
        ("Role", view.role),
        ("Type", view.mode),
        ("Address", view.address or "N/A"),
        ("Description", _DESCRIPTIONS[view.mode]),
        ("CPU", f"{format_share(view, 'cpu')} allocated{format_used(view, 'cpu')}"),
        ("Memory", f"{format_share(view, 'memory')} allocated{format_used(view, 'memory')}"),
        ("Pods", format_share(view, "pods")),
    ]
    if view.not_ready_reason:
        facts.insert(2, ("Reason", view.not_ready_reason))
    blocks = ["\n".join(f"{name + ':':{_LABEL}}{value}" for name, value in facts)]
    if details.instances:
        blocks.append(f"Instances:\n{_pod_table(details)}")
    if details.devices:
        blocks.append(f"GPUs:\n{_device_table(details.devices)}")
    if view.mode is not GpuMode.NONE or view.unhealthy_gpus:
        blocks.append(f"GPU Summary:\n{_summary(details)}")
    return "\n\n".join(blocks)


def _pod_table(details: NodeDetails) -> str:
    measured = bool(details.devices)
    head = ["NAMESPACE", "NAME", "STATUS", "GPU(Requested)"]
    head += ["GPU(Allocated)"] if measured else []
    head += ["JOB", "CPU(Requested)", "MEMORY(Requested)"]
    head += ["GPU(Used)"] if measured else []
    rows = [
        [
            instance.namespace,
            instance.name,
            instance.status,
            instance.gpus,
            *([",".join(instance.gpu_indexes)] if measured else []),
            instance.job,
            plain_number(instance.milli_cpu / 1000),
            f"{plain_number(round(instance.memory_bytes / _GI, 1))}Gi",
            *([format_gpus(instance.gpus_used)] if measured else []),
        ]
        for instance in details.instances
    ]
    return format_table(head, rows, indent="  ")


def _device_table(devices: "Sequence[GpuDevice]") -> str:
    head = ["INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE", "INSTANCE"]
    rows = [
        [
            device.index,
            _gibibytes(device.memory_total_bytes),
            _gibibytes(_allocated_memory(device)),
            _gibibytes(device.memory_used_bytes),
            format_duty_cycle(device),
            f"{device.namespace}/{device.pod}" if device.pod else "",
        ]
        for device in devices
    ]
    return format_table(head, rows, indent="  ")


def _allocated_memory(device: "GpuDevice") -> int | None:
    """Memory allocated to a pod: all memory of the GPU, because GPUs are not shared."""
    return device.memory_total_bytes if device.pod else 0


def _gibibytes(count: int | None) -> str:
    return "" if count is None else f"{count / _GI:.1f}Gi"


def _summary(details: NodeDetails) -> str:
    view = details.view
    total, allocated = view.total.get(GPU, 0), view.allocated.get(GPU, 0)
    lines = [f"  Allocated/Total GPUs: {_format_part(allocated, total)}"]
    if view.gpus_used is not None:
        lines.append(f"  Used/Total GPUs: {view.gpus_used:.2f}/{total}")
    if unhealthy := view.unhealthy_gpus:
        lines.append(
            f"  Unhealthy/Total GPUs: {_format_part(unhealthy, view.capacity.get(GPU, 0))}"
        )
    measured = [device for device in details.devices if device.memory_total_bytes is not None]
    if measured:
        used = sum(gpu.memory_used_bytes or 0 for gpu in measured)
        sum_total = sum(gpu.memory_total_bytes or 0 for gpu in measured)
        lines.append(f"  Used/Total GPU Memory: {used / _GI:.1f}/{sum_total / _GI:.1f}Gi")
    return "\n".join(lines)


def _format_part(count: int, total: int) -> str:
    return f"{count}/{total}" + (f" ({100 * count / total:.1f}%)" if total else "")


def details_data(details: NodeDetails) -> dict[str, Any]:
    return node_data(details.view) | {
        "description": _DESCRIPTIONS[details.view.mode],
        "reason": details.view.not_ready_reason,
        "instances": [_node_pod_data(instance) for instance in details.instances],
        "gpus": [_device_data(device) for device in details.devices],
    }


def _node_pod_data(instance: NodePod) -> Mapping[str, Any]:
    return {
        "namespace": instance.namespace,
        "name": instance.name,
        "status": instance.status,
        "job": instance.job,
        "requestGPUs": instance.gpus,
        "requestMilliCPU": instance.milli_cpu,
        "requestMemoryBytes": instance.memory_bytes,
        "usedGPUs": instance.gpus_used,
        "gpuIndexes": list(instance.gpu_indexes),
    }


def _device_data(device: "GpuDevice") -> Mapping[str, Any]:
    return {
        "index": device.index,
        "totalMemoryBytes": device.memory_total_bytes,
        "allocatedMemoryBytes": _allocated_memory(device),
        "usedMemoryBytes": device.memory_used_bytes,
        "dutyCycle": device.utilization,
        "namespace": device.namespace,
        "instance": device.pod,
    }


@group(
    "top",
    examples="""
        gangline top node
        gangline top job -A
    """,
)
def top_command() -> None:
    """Show capacity, allocation and usage of nodes and jobs."""


top_command.add_command(top_job_command)

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


@top_command.command(
    "node",
    examples="""
        gangline top node
        gangline top node -d node-1            # its pods and GPUs
        gangline top node -l pool=gpu -w
    """,
)
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=completers.nodes)
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
@cluster_command
@output_option()
async def top_node_command(  # noqa: PLR0913, PLR0917
    names: tuple[str, ...],
    details: bool,
    mode: GpuMode | None,
    metric: bool,
    refresh: bool,
    selector: str,
    cluster: ClusterSession,
    output: str,
) -> None:
    """Show GPUs, CPU and memory of each node, and how much is allocated."""
    if names and selector:
        message = f"node {names[0]!r} and --selector {selector!r} exclude each other"
        raise CommandError(message, code=ExitCode.USAGE)
    look = _NodeQuery(names, mode, details, output, selector)
    history = SparklineHistory()
    async for _ in refresh_times(refresh):
        nodes = await _load_nodes(cluster.client, look)
        if refresh and supports_sparklines():
            history.record({node.view.name: node.view.cpu_used or 0.0 for node in nodes})
        _print_nodes(nodes, look, history)
        if metric:
            _warn_of_unmeasured(nodes)


def _warn_of_unmeasured(nodes: Sequence[NodeDetails]) -> None:
    having = [node for node in nodes if node.view.total.get(GPU)]
    silent = [view.view.name for view in having if not view.devices]
    if not having:
        print_status("None of these nodes has GPUs.")
    elif silent:
        few = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
        print_status(f"No measurements of GPUs on {few}: no DCGM exporter answers there.")


def _print_nodes(nodes: Sequence[NodeDetails], look: _NodeQuery, history: SparklineHistory) -> None:
    views = [node.view for node in nodes]
    data = [details_data(node) if look.details else node_data(node.view) for node in nodes]
    if print_result(
        without_rounding_errors(data), look.output, [f"node/{view.name}" for view in views]
    ):
        return
    if look.details:
        print_text(format_nodes(nodes))
    else:
        click.echo(node_table(views, history, modes=look.output == "wide"))
    if sums := gpu_totals(views):
        click.echo(sums)


async def _load_nodes(client: "ApiClient", look: _NodeQuery) -> list[NodeDetails]:
    from gangline.api.resources import NODES, PODS
    from gangline.api.suggestions import did_you_mean
    from gangline.sdk.usage import gpu_usage, node_usage

    node_list, pod_list = await asyncio.gather(
        client.list(NODES, labels=look.selector), client.list(PODS)
    )
    pods, by_name = pod_list.items, {node.metadata.name: node for node in node_list.items}
    for name in look.names:
        if name not in by_name:
            message = f"there is no node {name!r}.{did_you_mean(name, by_name)}".removesuffix(".")
            raise CommandError(message, code=ExitCode.NOT_FOUND)
    nodes = [by_name[name] for name in look.names or by_name]
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
