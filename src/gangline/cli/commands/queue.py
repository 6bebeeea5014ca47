"""``queue``: limits, usage and state of queues; open and close them.

The columns are those of vcctl, followed by amounts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import group
from gangline.cli.params.job_selection import poll_changes, selector_option, watch_option
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, cluster_command, suggest_names
from gangline.cli.render.explanation import scheduler_settings
from gangline.cli.render.output import format_table, print_result, print_text

if TYPE_CHECKING:
    from gangline.api.meta.field_doc import ResourceList
    from gangline.api.volcano.scheduling import Queue
    from gangline.kube.client.client import ApiClient
    from gangline.scheduler.reporting.explain import QueueUsage


HEAD = (
    "NAME", "WEIGHT", "STATE", "PARENT", "INQUEUE", "PENDING", "RUNNING", "UNKNOWN", "COMPLETED",
)  # fmt: skip
WIDE = ("PRIORITY", "ALLOCATED", "DESERVED", "CAPABILITY", "GUARANTEE", "RECLAIMABLE", "DEQUEUE")


def queue_table(queues: "Sequence[Queue]", *, wide: bool) -> str:
    rows = [[*_row(queue), *(_wide_cells(queue) if wide else ())] for queue in queues]
    return format_table([*HEAD, *(WIDE if wide else ())], rows)


def format_queue(queue: "Queue", uses: "Sequence[QueueUsage]") -> str:
    """Return one queue: its fields, then the figures of the queue and of its parents."""
    facts = dict(zip((*HEAD, *WIDE), (*_row(queue), *_wide_cells(queue)), strict=True))
    lines = [
        f"{name.capitalize() + ':':13}{value if value != '' else 'N/A'}"
        for name, value in facts.items()
    ]
    for use in uses:
        most = f", at most {use.most}" if use.most else ""
        lines += [
            "",
            f"{use.name} uses {use.used}: {use.share:.0%} of its fair share",
            f"  fair share {use.entitled}{most}",
            f"  with pending pods {use.requested}",
        ]
    return "\n".join(lines)


def _row(queue: "Queue") -> list[object]:
    spec, status = queue.spec, queue.status
    counts = (status.inqueue, status.pending, status.running, status.unknown, status.completed)
    weight = 1 if spec.weight is None else spec.weight
    return [queue.metadata.name, weight, status.state or "Open", spec.parent or "root", *counts]


def _wide_cells(queue: "Queue") -> list[object]:
    spec = queue.spec
    return [
        spec.priority,
        _amounts(queue.status.allocated),
        _amounts(spec.deserved),
        _amounts(spec.capability),
        _amounts(spec.guarantee.resource if spec.guarantee else {}),
        "no" if spec.reclaimable is False else "yes",
        spec.dequeue_strategy or "traverse",
    ]


def _amounts(amounts: "ResourceList") -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))


@group(
    "queue",
    examples="""
        gangline queue list -o wide
        gangline queue get research
    """,
)
def queue_command() -> None:
    """Show queues, and open or close them. 'kubectl apply' creates and changes them."""


@queue_command.command(
    "list",
    examples="""
        gangline queue list
        gangline queue list -o wide -w
    """,
)
@cluster_command
@selector_option("queues")
@watch_option("what changes")
@output_option()
async def list_queues(cluster: ClusterSession, selector: str, watch: bool, output: str) -> None:
    """Show all queues. '-o wide' shows their limits and usage."""
    from gangline.api.resources import QUEUES

    async def stored_queues() -> "list[Queue]":
        queues = (await cluster.client.list(QUEUES, labels=selector)).items
        return sorted(queues, key=lambda queue: queue.metadata.name)

    async for queues, head in poll_changes(stored_queues, watch=watch):
        names = map(_qualified_name, queues)
        if not print_result([_data(queue) for queue in queues], output, names):
            shown = queue_table(queues, wide=output == "wide")
            click.echo(shown if head else shown.partition("\n")[2])


@queue_command.command("get", examples="gangline queue get research")
@click.argument("name", shell_complete=completers.queues)
@cluster_command
@watch_option("the queue when it changes")
@output_option()
async def get_queue(name: str, cluster: ClusterSession, watch: bool, output: str) -> None:
    """Show one queue: its limits, its current fair share, and its usage."""
    from gangline.api.resources import QUEUES

    async def stored_queue() -> "list[Queue]":
        async with suggest_names(cluster.client, QUEUES, name):
            return [await cluster.client.get(QUEUES, name)]

    async for (queue,), _ in poll_changes(stored_queue, watch=watch):
        if not print_result(_data(queue), output, [_qualified_name(queue)]):
            print_text(format_queue(queue, await _queue_uses(cluster.client, name)))


@queue_command.command("close", examples="gangline queue close research")
@click.argument("name", shell_complete=completers.queues)
@cluster_command
@output_option()
async def close_queue(name: str, cluster: ClusterSession, output: str) -> None:
    """Close a queue and its children for new jobs. Running jobs continue."""
    _print_changed(await _set_state(cluster.client, name, "Closing"), "closed", output)


@queue_command.command("open", examples="gangline queue open research")
@click.argument("name", shell_complete=completers.queues)
@cluster_command
@output_option()
async def open_queue(name: str, cluster: ClusterSession, output: str) -> None:
    """Open a queue for new jobs."""
    _print_changed(await _set_state(cluster.client, name, "Open"), "opened", output)


def _qualified_name(queue: "Queue") -> str:
    return f"queue/{queue.metadata.name}"


def _print_changed(queue: "Queue", what: str, output: str) -> None:
    if not print_result(_data(queue), output, [_qualified_name(queue)]):
        click.echo(f"{_qualified_name(queue)} {what}")


async def _set_state(client: "ApiClient", name: str, state: str) -> "Queue":
    """Set the state of a queue; the scheduler turns Closing into Closed once it is empty."""
    from gangline.api.resources import QUEUES
    from gangline.api.volcano.scheduling import ROOT_QUEUE

    if name == ROOT_QUEUE:
        raise CommandError(f"queue {name!r} is the cluster itself", code=ExitCode.USAGE)
    change = {"status": {"state": state}}
    async with suggest_names(client, QUEUES, name):
        queue: Queue = await client.patch(QUEUES, name, change, subresource="status")
        return queue


async def _queue_uses(client: "ApiClient", name: str) -> "list[QueueUsage]":
    """Return shares and usage of a queue and its parents; empty if the user lacks rights."""
    from gangline.kube.errors import Forbidden
    from gangline.scheduler.reporting.explain import queue_usages
    from gangline.scheduler.reporting.replay import read_cluster_state

    try:
        settings = await scheduler_settings(client, None)
        options = (settings.scheduler_names, settings.weights, settings.hierarchical)
        state = await read_cluster_state(client, *options)
    except Forbidden:
        return []
    return list(queue_usages(state, name))


def _data(queue: "Queue") -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(queue, builtin_types=())
    return data
