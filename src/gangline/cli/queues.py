"""``queue``: amounts, usage and state of queues."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.choosing import changes, selector_option, watch_option
from gangline.cli.errors import CommandError
from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import cluster_options, output_option
from gangline.cli.output import tell
from gangline.cli.queue_views import queue_block, queue_table
from gangline.cli.target import Target

if TYPE_CHECKING:
    from gangline.api.scheduling import Queue
    from gangline.kube.client import Client
    from gangline.scheduler.explain import QueueUse

FORMATS = ("table", "wide", "json", "yaml", "name")


@click.group("queue")
def queue_command() -> None:
    """Show queues, and open or close them. 'kubectl apply' creates and changes them."""


@queue_command.command("list")
@cluster_options
@selector_option("queues")
@watch_option("what changes")
@output_option(*FORMATS)
def list_queues(target: Target, selector: str, watch: bool, output: str) -> None:
    """Show all queues. '-o wide' shows their limits and usage."""

    async def show() -> None:
        from gangline.api.resources import QUEUES  # noqa: PLC0415

        async with target.connect() as client:

            async def look() -> "list[Queue]":
                found = (await client.list(QUEUES, labels=selector)).items
                return sorted(found, key=lambda queue: queue.metadata.name)

            async for queues, head in changes(look, watch=watch):
                _tell_queues(queues, output, head=head)

    run(show())


def _tell_queues(queues: "Sequence[Queue]", output: str, *, head: bool) -> None:
    if output == "name":
        for queue in queues:
            click.echo(f"queue/{queue.metadata.name}")
    elif not tell([_data(queue) for queue in queues], output):
        shown = queue_table(queues, wide=output == "wide")
        click.echo(shown if head else shown.partition("\n")[2])


@queue_command.command("get")
@click.argument("name", shell_complete=completing.queues)
@cluster_options
@watch_option("the queue when it changes")
@output_option(*FORMATS)
def get_queue(name: str, target: Target, watch: bool, output: str) -> None:
    """Show one queue: its limits, its current fair share, and its usage."""

    async def show() -> None:
        from gangline.api.resources import QUEUES  # noqa: PLC0415

        async with target.connect() as client:

            async def look() -> "list[Queue]":
                return [await client.get(QUEUES, name)]

            async for (queue,), _ in changes(look, watch=watch):
                uses = await _uses(client, name) if output in {"table", "wide"} else []
                if output == "name":
                    click.echo(f"queue/{queue.metadata.name}")
                elif not tell(_data(queue), output):
                    click.echo(queue_block(queue, uses))

    run(show())


@queue_command.command("close")
@click.argument("name", shell_complete=completing.queues)
@cluster_options
@output_option(*FORMATS)
def close_queue(name: str, target: Target, output: str) -> None:
    """Close a queue and its children for new jobs. Running jobs continue."""
    _tell_changed(run(_set_state(target, name, "Closing")), "closed", output)


@queue_command.command("open")
@click.argument("name", shell_complete=completing.queues)
@cluster_options
@output_option(*FORMATS)
def open_queue(name: str, target: Target, output: str) -> None:
    """Open a queue for new jobs."""
    _tell_changed(run(_set_state(target, name, "Open")), "opened", output)


def _tell_changed(queue: "Queue", what: str, output: str) -> None:
    if output == "name":
        click.echo(f"queue/{queue.metadata.name}")
    elif not tell(_data(queue), output):
        click.echo(f"queue/{queue.metadata.name} {what}")


async def _set_state(target: Target, name: str, state: str) -> "Queue":
    """Set the state of a queue; the scheduler turns Closing into Closed once it is empty."""
    from gangline.api.resources import QUEUES  # noqa: PLC0415
    from gangline.api.scheduling import ROOT_QUEUE  # noqa: PLC0415

    if name == ROOT_QUEUE:
        raise CommandError(f"queue {name!r} is the cluster itself", code=ExitCode.USAGE)
    async with target.connect() as client:
        change = {"status": {"state": state}}
        queue: Queue = await client.patch(QUEUES, name, change, subresource="status")
        return queue


async def _uses(client: "Client", name: str) -> "list[QueueUse]":
    """Return shares and usage of a queue and its parents; empty if the user lacks rights."""
    from gangline.kube.errors import Forbidden  # noqa: PLC0415
    from gangline.scheduler.configuration import ConfigurationError  # noqa: PLC0415
    from gangline.scheduler.explain import queue_uses  # noqa: PLC0415
    from gangline.scheduler.replay import configured, observed  # noqa: PLC0415

    try:
        settings = await configured(client)
        options = (settings.scheduler_names, settings.weights, settings.hierarchical)
        state = await observed(client, *options)
    except Forbidden:
        return []
    except ConfigurationError as error:
        raise CommandError(f"the scheduler's ConfigMap: {error}", code=ExitCode.USAGE) from error
    return list(queue_uses(state, name))


def _data(queue: "Queue") -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    data: dict[str, Any] = msgspec.to_builtins(queue, builtin_types=())
    return data
