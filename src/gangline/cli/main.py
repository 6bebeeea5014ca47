"""The ``gangline`` command: a group whose commands are imported only when they are run.

``COMMANDS`` names every command, its module and its one-line help, so that ``gangline --help``
and completion of command names import nothing but click.
"""

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

from gangline.cli.errors import explain
from gangline.cli.exit_codes import ExitCode


class Entry(NamedTuple):
    """Where a command lives, and what ``--help`` says about it."""

    module: str
    help: str


COMMANDS = {
    "submit": Entry("submit", "Start a training job from a file or from flags."),
    "list": Entry("show", "Show jobs."),
    "get": Entry("show", "Show one job: its state, its replicas, why it waits."),
    "explain": Entry("explain", "Say why a job waits, with the figures behind it."),
    "logs": Entry("logs", "Print the logs of a job's replicas, merged."),
    "describe": Entry("describe", "Show everything about one job: spec, replicas, events."),
    "events": Entry("events", "Show what happened to jobs and their pods."),
    "wait": Entry("wait", "Wait until jobs have ended, or are in another state."),
    "diagnose": Entry("diagnose", "Find out why a job failed or waits."),
    "delete": Entry("delete", "Delete jobs."),
    "prune": Entry("prune", "Delete jobs that ended long ago."),
    "suspend": Entry("change", "Take a job's pods away and hold it."),
    "resume": Entry("change", "Let a suspended job go on."),
    "scale": Entry("change", "Change how many workers a job has."),
    "scalein": Entry("change", "Take workers away from a job."),
    "scaleout": Entry("change", "Add workers to a job."),
    "restart": Entry("change", "Run a job from its beginning."),
    "clone": Entry("change", "Submit a job like another one."),
    "attach": Entry("access", "Open a shell in a replica."),
    "exec": Entry("access", "Run a command in a replica."),
    "port-forward": Entry("access", "Open a port of this machine into a job."),
    "tensorboard": Entry("tensorboard", "Open the TensorBoard of a job."),
    "top": Entry("top", "Show what nodes and jobs have and use."),
    "data": Entry("data", "Show the claims that jobs can mount."),
    "doctor": Entry("doctor", "Check what usually breaks, and say what to do."),
    "queue": Entry("queues", "Show queues; open and close them."),
    "up": Entry("cluster", "Start a cluster on this machine."),
    "down": Entry("cluster", "Stop the cluster that 'up' has started."),
    "status": Entry("cluster", "Show whether the cluster runs, and its nodes."),
    "demo": Entry("demo", "Train a small network on three nodes and break a worker."),
    "run": Entry("run_command", "Start a training script on this node, as torchrun does."),
    "operator": Entry("operator_command", "Run the operator alone."),
    "scheduler": Entry("components", "Run the scheduler alone."),
    "master": Entry("master_command", "Run the master of one elastic job alone."),
    "apiserver": Entry("components", "Run the API server of the local cluster alone."),
    "simulate": Entry("simulate", "Try the scheduler on a trace of jobs, on virtual time."),
    "config": Entry("config", "Show your settings and profiles, and switch between them."),
    "version": Entry("version", "Print the version."),
    "reference": Entry("reference", "Print what all commands take, as Markdown."),
    "completion": Entry("completion", "Print the completion script of a shell."),
}
"""The commands in the order of ``--help``: jobs first, then the cluster, then the rest."""


class Session:
    """What the edge needs to know about the command that ran."""

    def __init__(self) -> None:
        self.debug = False


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"gangline.cli.{entry.module}")
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; a mistyped one is answered with the nearest name."""
        mistyped = args and args[0] not in COMMANDS and not args[0].startswith("-")
        if mistyped and not ctx.resilient_parsing:  # a shell that completes must not be told
            ctx.fail(_unknown_command(args[0]))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete the name of a command from the table alone, or an option."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415

        commands = [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _unknown_command(name: str) -> str:
    # difflib costs ten milliseconds to import, and only a typing mistake needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, COMMANDS, n=1)
    return f"There is no command {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.pass_context
def gangline(context: click.Context, debug: bool) -> None:
    """Train on many machines: all of the gang pulls, or the sled does not move."""
    context.obj.debug = context.obj.debug or debug
    if os.environ.get("NO_COLOR"):
        context.color = False
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit with its status; every error becomes a message here."""
    _write_all_signs()
    sys.exit(run(arguments))


def _write_all_signs() -> None:
    """Write signs that a terminal's encoding lacks by their numbers: others may write in any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    session = Session()
    try:
        status = gangline.main(arguments, prog_name="gangline", standalone_mode=False, obj=session)
    except BrokenPipeError:
        # The reader of a pipe such as `gangline list | head` has seen enough: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode(bool(end.code))
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, session)
    return int(status) if isinstance(status, int) else ExitCode.DONE


def _report(error: BaseException, session: Session) -> int:
    """Say on stderr what went wrong and what to do next; return the exit status."""
    if session.debug:
        from traceback import print_exception  # noqa: PLC0415

        print_exception(error)
    told = explain(error)
    click.echo(f"Error: {told.message}" if told.code != ExitCode.INTERRUPTED else "", err=True)
    if told.hint:
        click.echo(told.hint, err=True)
    return told.code
