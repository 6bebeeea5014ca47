"""``attach``, ``exec`` and ``port-forward``: access to the replicas of a job.

``run_interactive`` connects a command in a container to the local terminal or pipe.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.event_loop import background
from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.options import job_argument
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.output import print_status, terminal_size

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.kube.client.exec import RemoteCommand
    from gangline.kube.http.transport import Transport
    from gangline.sdk.addresses import PortTarget
    from gangline.sdk.jobs import Job, Replica


_CHUNK = 1 << 16


async def run_interactive(
    transport: "Transport",
    pod: str,
    namespace: str,
    command: tuple[str, ...],
    *,
    container: str = "",
    stdin: bool = False,
    tty: bool = False,
) -> int:
    """Run a command to its end, and return its exit code.

    Raises:
        ApiError: the command could not be run, or the connection broke.
    """
    from gangline.kube.client.exec import STDERR, open_remote_command

    opened = open_remote_command(
        transport, pod, namespace, command, container=container, stdin=stdin, tty=tty
    )
    async with opened as session, background(_forward_input(session)) if stdin else nullcontext():
        with _raw_terminal(session) if tty else nullcontext():
            async for channel, content in session.output():
                stream = sys.stderr if channel == STDERR else sys.stdout
                stream.buffer.write(content)
                stream.flush()
    return session.exit_code or 0


async def _forward_input(session: "RemoteCommand") -> None:
    """Send terminal input, or the content of a pipe until its end."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    while True:
        ready = asyncio.Event()
        try:
            loop.add_reader(descriptor, ready.set)
        except PermissionError:  # epoll refuses regular files, which are always readable
            content = await asyncio.to_thread(os.read, descriptor, _CHUNK)
        else:
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
            content = os.read(descriptor, _CHUNK)
        if not content:
            await session.close_input()
            return
        await session.write(content)


@contextmanager
def _raw_terminal(session: "RemoteCommand") -> Iterator[None]:
    """Send every key immediately, and the size of the window when it changes."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    sizes: set[asyncio.Task[None]] = set()

    def send_size() -> None:
        columns, rows = terminal_size()
        task = loop.create_task(session.resize(columns, rows))
        sizes.add(task)
        task.add_done_callback(sizes.discard)

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop.add_signal_handler(signal.SIGWINCH, send_size)
    send_size()
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        loop.remove_signal_handler(signal.SIGWINCH)


_INSTANCE = click.option(
    "-i",
    "--instance",
    default="",
    shell_complete=completers.instances,
    help="Replica: worker-3, or the name of its pod.",
)
_CONTAINER = click.option(
    "-c",
    "--container",
    default="",
    shell_complete=completers.containers,
    help="Container; default: the first.",
)
_COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")


@command(
    "attach",
    examples="""
        gangline attach digits
        gangline attach -i worker-2 digits bash
    """,
)
@_INSTANCE
@_CONTAINER
@job_command
@job_argument
@_COMMAND
async def attach_command(
    job: str, command: tuple[str, ...], instance: str, container: str, cluster: ClusterSession
) -> int:
    """Open a shell (or run COMMAND) in the leading replica of a job, on this terminal."""
    return await _exec_in_replica(cluster, job, command or ("sh",), instance, container, stdin=True)


@command(
    "exec",
    examples="""
        gangline exec digits -- nvidia-smi
        gangline exec -i worker-2 digits -- py-spy dump --pid 1
    """,
)
@_INSTANCE
@_CONTAINER
@click.option("--stdin/--no-stdin", default=False, help="Forward standard input.")
@job_command
@job_argument
@_COMMAND
async def exec_command(
    job: str,
    command: tuple[str, ...],
    instance: str,
    container: str,
    stdin: bool,
    cluster: ClusterSession,
) -> int:
    """Run COMMAND in a replica of a job and exit with its status.

    Put -- before a COMMAND that has options of its own.
    """
    if not command:
        raise click.UsageError("no COMMAND given, such as: gangline exec JOB -- nvidia-smi")
    return await _exec_in_replica(cluster, job, command, instance, container, stdin=stdin)


@command(
    "replace",
    examples="""
        gangline replace digits 3
        gangline replace digits 3 --reason "its node is under maintenance"
    """,
)
@job_command
@job_argument
@click.argument("rank", type=click.IntRange(0))
@click.option("--reason", default="requested", show_default=True, help="Text for the log.")
async def replace_command(job: str, rank: int, reason: str, cluster: ClusterSession) -> int:
    """Replace RANK of a job by another process when a successor is warm. The other ranks keep
    running, and lose at most one step. The script must use SurvivorGroup.
    """
    program = ("python", "-m", "gangline.elastic.agent.replace_rank", str(rank))
    return await _exec_in_replica(cluster, job, (*program, "--reason", reason), "", "", stdin=False)


async def _exec_in_replica(
    cluster: ClusterSession,
    job: str,
    command: tuple[str, ...],
    instance: str,
    container: str,
    *,
    stdin: bool,
) -> int:
    from gangline.kube.errors import ApiError

    job_found = await cluster.jobs.get(job, cluster.namespace)
    replica = select_replica(job_found, instance)
    try:
        return await run_interactive(
            cluster.client.transport,
            replica.name,
            job_found.namespace,
            command,
            container=container,
            stdin=stdin,
            tty=stdin and sys.stdin.isatty() and sys.stdout.isatty(),
        )
    except ApiError as error:
        if replica.status == "Running":
            raise
        raise _not_running(job_found, replica) from error


def _not_running(job: "Job", replica: "Replica") -> CommandError:
    """Say why no command can run in a replica: it has ended, or has not started."""
    if job.state.finished or replica.exit_code is not None:
        end = f"{replica.short_name} has ended ({replica.status})"
        which = "" if replica.chief else f" -i {replica.short_name}"
        hint = f"'gangline logs {job.name} -n {job.namespace}{which}' prints what it wrote."
        return CommandError(f"no command can run in job {job.name}: {end}", hint=hint)
    why = f": {replica.message}" if replica.message else ""
    return CommandError(
        f"no command can run in job {job.name}: {replica.short_name} does not run yet "
        f"({replica.status}{why})",
        hint=f"'gangline wait {job.name} -n {job.namespace} --for running' waits for it.",
    )


def select_replica(job: "Job", instance: str) -> "Replica":
    """Return the replica of this name; the leading replica for an empty name.

    Raises:
        CommandError: the job has no such replica, or no replicas yet.
    """
    if not job.replicas:
        why = f": {job.reason}" if job.reason else ""
        raise CommandError(f"job {job.name} has no replicas ({job.state}){why}")
    if not instance:
        return job.chief or job.replicas[0]
    for replica in job.replicas:
        if instance in {replica.name, replica.short_name}:
            return replica
    names = ", ".join(replica.short_name for replica in job.replicas)
    raise CommandError(
        f"job {job.name} has no replica {instance!r}; it has {names}", code=ExitCode.USAGE
    )


@command(
    "port-forward",
    examples="""
        gangline port-forward digits 8265
        gangline port-forward svc/digits-tensorboard 9090:6006
    """,
)
@_INSTANCE
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@job_command
@click.argument("job", metavar="JOB|svc/SERVICE|pod/POD", shell_complete=completers.port_targets)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
async def port_forward_command(
    job: str, ports: tuple[str, ...], instance: str, address: str, cluster: ClusterSession
) -> None:
    """Forward local ports to a replica of a job, to a pod of a service, or to a pod."""
    from gangline.sdk.addresses import PortTarget

    target = PortTarget(cluster.namespace, job, cluster.kind, instance)
    await forward_ports(cluster.client, target, list(map(parse_port_mapping, ports)), address)


def parse_port_mapping(text: str) -> tuple[int, int]:
    """Parse ``8080:6006``, ``6006`` or ``:6006`` (any free local port).

    Raises:
        BadParameter: the text has none of these forms.
    """
    local, colon, remote = text.partition(":")
    ports = (local or "0", remote) if colon else (text, text)
    if not all(part.isascii() and part.isdecimal() and int(part) < 1 << 16 for part in ports):
        raise click.BadParameter(
            f"{text!r}: write LOCAL:REMOTE, ports up to 65535, such as 9090:6006",
            param_hint="PORT",
        )
    return int(ports[0]), int(ports[1])


async def forward_ports(
    client: "ApiClient", what: "PortTarget", ports: list[tuple[int, int]], address: str
) -> None:
    """Forward ports until the command is interrupted."""
    from contextlib import AsyncExitStack

    from gangline.kube.client.port_forward import forward_port
    from gangline.sdk.addresses import resolve_port_target

    async with AsyncExitStack() as stack:
        for local, remote in ports:

            async def target(remote: int = remote) -> tuple[str, int]:
                return await resolve_port_target(client, what, remote)

            await target()
            opened = forward_port(
                client.transport,
                what.namespace,
                target,
                local_port=local,
                host=address,
                on_error=lambda text: print_status(f"Warning: {text}"),
            )
            port = await stack.enter_async_context(opened)
            click.echo(f"Forwarding from {address}:{port} -> {remote}")
            sys.stdout.flush()
        await asyncio.Event().wait()
