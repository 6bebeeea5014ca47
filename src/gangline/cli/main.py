"""The ``gangline`` command: a group whose commands are imported only when they run.

``COMMANDS`` has the name, the module and the one-line help of every command. ``gangline --help``
and the completion of command names therefore import nothing but click.
"""

import os
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from gangline.cli.arena import COMMAND_ALIASES, REFUSED_COMMANDS
from gangline.cli.errors import CommandError, ExitCode, to_command_error
from gangline.cli.params.command import Group, group
from gangline.cli.params.options import target_flags
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """A command that is imported when it is used."""

    module: str
    """Its module in ``gangline.cli.commands``."""
    help: str
    """Its line in ``gangline --help``."""


SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start a job": {
        "submit": ("submit", "Start a training job from a file or from flags."),
        "clone": ("lifecycle", "Submit a copy of a job."),
        "run": ("run", "Start a training script on this node, as torchrun does."),
    },
    "Watch it": {
        "list": ("get", "Show jobs."),
        "get": ("get", "Show one job: its state, its replicas, why it is pending."),
        "logs": ("logs", "Print the logs of a job's replicas, merged."),
        "dashboard": ("dashboard", "Open jobs, queues and nodes in a browser."),
        "top": ("top_node", "Show resources and usage of nodes and jobs."),
        "tensorboard": ("tensorboard", "Open the TensorBoard of a job."),
        "events": ("events", "Show events of jobs and their pods."),
        "describe": ("describe", "Show everything about one job: spec, replicas, events."),
        "wait": ("wait", "Wait until jobs have ended, or reach another state."),
        "logviewer": ("logs", "Print the command that follows the logs of a job."),
    },
    "Find out why it waits or fails": {
        "diagnose": ("diagnose", "Find out why a job failed or is pending."),
        "explain": ("explain", "Explain why a job is pending, with figures."),
        "doctor": ("diagnose", "Check the cluster for common problems."),
        "advise": ("advise", "Show what the Brain advises for jobs."),
        "history": ("history", "Show ended jobs, and what they used."),
    },
    "Change it": {
        "scale": ("lifecycle", "Set the number of workers of a job."),
        "scaleout": ("lifecycle", "Add workers to a job."),
        "scalein": ("lifecycle", "Remove workers from a job."),
        "suspend": ("lifecycle", "Delete the pods of jobs and suspend the jobs."),
        "resume": ("lifecycle", "Resume suspended jobs."),
        "restart": ("lifecycle", "Start a job from its beginning."),
        "replace": ("exec", "Replace a rank of a job while the others keep running."),
        "delete": ("delete", "Delete jobs."),
        "prune": ("delete", "Delete jobs that ended long ago."),
    },
    "Enter its pods": {
        "exec": ("exec", "Run a command in a replica."),
        "attach": ("exec", "Open a shell in a replica."),
        "port-forward": ("exec", "Forward local ports to a job."),
    },
    "Cluster on this machine": {
        "demo": ("demo", "Train a small network on three nodes and break a worker."),
        "up": ("cluster", "Start a cluster on this machine."),
        "status": ("cluster", "Show whether the local cluster runs, and its nodes."),
        "down": ("cluster", "Stop the cluster that 'up' has started."),
        "backup": ("backup", "Write the local cluster's state to a file."),
        "restore": ("backup", "Replace the local cluster's state by that of a backup."),
    },
    "Cluster of Kubernetes": {
        "deploy": ("deploy", "Install Gangline on a Kubernetes cluster, or upgrade it."),
        "undeploy": ("deploy", "Remove what 'deploy' has installed."),
        "queue": ("queue", "Show queues; open and close them."),
        "data": ("data", "Show persistent volume claims that jobs can mount."),
        "whoami": ("whoami", "Show as whom the cluster knows you."),
    },
    "Plan": {
        "plan": ("plan", "Plan a training: memory, time, cost, and layouts that fit."),
        "simulate": ("simulate", "Run the scheduler over a trace of jobs, on virtual time."),
    },
    "This program": {
        "config": ("config", "Show your settings and profiles, and switch between them."),
        "completion": ("completion", "Print the completion script of a shell."),
        "version": ("completion", "Print the version."),
        "reference": ("completion", "Print the options of all commands, as Markdown."),
    },
    "Components, which 'up' and 'deploy' start": {
        "operator": ("operator", "Run the operator alone."),
        "scheduler": ("components", "Run the scheduler alone."),
        "brain": ("brain", "Run the Brain: history of jobs, and advice on them."),
        "apiserver": ("components", "Run the API server of the embedded cluster alone."),
        "master": ("master", "Run the master of one elastic job alone."),
        "initialize": ("initialize", "Fetch data or a model, in a pod of a TrainJob."),
    },
}
"""The commands by purpose, in the order of ``--help``: the module of each, and its line."""
COMMANDS = {
    name: LazyCommand(*entry) for entries in SECTIONS.values() for name, entry in entries.items()
}

FIRST_HOUR = (
    ("gangline demo", "Train on three nodes, break a worker."),
    ("gangline up --detach", "Start a cluster on this machine."),
    ("gangline submit pytorch --help", "Start a job: options and examples."),
    ("gangline logs JOB -f", "Follow what a job prints."),
    ("gangline diagnose JOB", "Find out why it waits or has failed."),
)
"""What ``gangline`` prints alone."""


class InvocationState:
    """State of one invocation that error handling reads."""

    def __init__(self) -> None:
        self.debug = False
        self.target: dict[str, str | None] = {}
        """Options before the command that select a cluster; those behind it come first."""
        self.arguments: list[str] = []
        """The words behind ``gangline``."""


class LazyGroup(Group):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = COMMAND_ALIASES.get(cmd_name, cmd_name)
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        module = import_module(f"gangline.cli.commands.{entry.module}")
        command = getattr(module, f"{name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; for an unknown name, suggest the closest command."""
        name = args[0] if args else "-"
        mistyped = not (name.startswith("-") or name in COMMANDS or name in COMMAND_ALIASES)
        if mistyped and not ctx.resilient_parsing:  # completion must not print an error
            if name in REFUSED_COMMANDS:
                raise CommandError(REFUSED_COMMANDS[name], code=ExitCode.USAGE)
            ctx.fail(_unknown_command(name))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete a command name from the table alone, or an option."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by purpose, without importing any of them."""
        width = max(map(len, COMMANDS))  # so that the texts of all sections are aligned
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in entries.items()]
                )


def _unknown_command(name: str) -> str:
    from gangline.api.suggestions import did_you_mean

    return f"There is no command {name!r}.{did_you_mean(name, COMMANDS)}"


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        command = gangline.get_command(ctx, "version")
        assert command is not None
        ctx.invoke(command)
        ctx.exit()


@group(
    "gangline",
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples="""
        gangline submit pytorch --help   # options and examples of a command
        gangline -n research list        # options of the cluster may come first
    """,
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@partial(target_flags, show_debug=True)
@click.pass_context
def gangline(click_context: click.Context, /, **target: str | None) -> None:
    """Distributed training on Kubernetes: gang scheduling, elastic jobs, fast checkpoints."""
    click_context.obj.target = target
    if os.environ.get("NO_COLOR"):
        click_context.color = False
    if click_context.invoked_subcommand is None:
        click.echo(_first_steps(click_context).rstrip())


def _first_steps(ctx: click.Context) -> str:
    """Return the commands of the first hour, and how to see all."""
    formatter = ctx.make_formatter()
    formatter.write_text(gangline.help or "")
    with formatter.section("The first hour"):
        formatter.write_dl(FIRST_HOUR, col_max=40)
    formatter.write_paragraph()
    formatter.write_text(
        f"'gangline --help' shows all {len(COMMANDS)} commands, 'gangline COMMAND --help' the "
        "options and examples of one."
    )
    return formatter.getvalue()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit with its status; turn every error into a message."""
    _escape_unencodable()
    sys.exit(run(arguments))


def _escape_unencodable() -> None:
    """Escape characters that the terminal's encoding lacks, instead of failing to print them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str] | None = None) -> int:
    session = InvocationState()
    session.arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = gangline.main(arguments, prog_name="gangline", standalone_mode=False, obj=session)
    except click.exceptions.NoArgsIsHelpError as bare:
        # A group of commands without a command: its help, as of gangline without a command.
        if bare.ctx is not None:
            click.echo(bare.ctx.get_help())
        return ExitCode.DONE
    except BrokenPipeError:
        # The reader closed the pipe, as in `gangline list | head`: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode(bool(end.code))
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, session)
    return int(status) if isinstance(status, int) else ExitCode.DONE


def _report(error: BaseException, session: InvocationState) -> int:
    """Print the message and the hint for an error to stderr, and return the exit status."""
    if session.debug:
        from traceback import print_exception

        print_exception(error)
    failure = to_command_error(error)
    message = "" if failure.code == ExitCode.INTERRUPTED else f"Error: {failure.message}"
    print_status(message)
    if failure.hint:
        print_status(failure.hint)
    return failure.code
