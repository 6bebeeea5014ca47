"""``submit pytorch``, ``submit tf`` and so on: one command for each kind, from one table."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.jobs.command import JobCommand
from gangline.cli.options import namespace_options, output_option
from gangline.cli.target import Target

OUTPUTS = ("text", "name", "yaml", "json")


class Trainer(NamedTuple):
    """A kind of job as the command line knows it."""

    word: str
    """Behind ``submit``."""
    trainer: str
    """In lists."""
    aliases: tuple[str, ...]
    runs: str
    """What the command does, for ``--help``."""
    clean: str = "Running"


TRAINERS = (
    Trainer(
        "pytorch",
        "pytorchjob",
        ("pytorchjob", "py"),
        "Start a PyTorch job that runs COMMAND in each of its pods.",
    ),
    Trainer(
        "tf",
        "tfjob",
        ("tfjob", "tensorflow"),
        "Start a TensorFlow job that runs COMMAND in each of its pods.",
    ),
    Trainer(
        "mpi",
        "mpijob",
        ("mpijob", "mj", "horovod", "horovodjob", "hj"),
        "Start an MPI job whose launcher runs COMMAND, such as mpirun, on its workers.",
        clean="All",
    ),
    Trainer(
        "mindspore",
        "msjob",
        ("mindsporejob", "msjob", "ms"),
        "Start a MindSpore job that runs COMMAND in each of its pods.",
    ),
    Trainer(
        "paddle",
        "paddlejob",
        ("paddlejob",),
        "Start a PaddlePaddle job that runs COMMAND in each of its pods.",
    ),
    Trainer(
        "jax",
        "jaxjob",
        ("jaxjob",),
        "Start a JAX job that runs COMMAND in each of its pods.",
    ),
    Trainer(
        "elastic",
        "elasticjob",
        ("elasticjob", "et", "etjob"),
        "Start a job whose workers may come and go, and that runs COMMAND in each.",
    ),
)


_TRAINERS = {name: each for each in TRAINERS for name in (each.word, *each.aliases)}


class KindGroup(click.Group):
    """A group with a command for each name of each kind, made when it is used.

    All but the first name of a kind are hidden. To make all of them takes longer than whoever has
    pressed the tabulator wants to wait.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return sorted(_TRAINERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or None."""
        trainer = _TRAINERS.get(cmd_name)
        return None if trainer is None else _command(trainer, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete the word of a kind from the table alone, or an option."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415

        words = sorted((each.word, each.runs) for each in TRAINERS)
        found = [
            CompletionItem(word, help=runs) for word, runs in words if word.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def commands() -> Iterator[click.Command]:
    """Build the command of each kind."""
    for trainer in TRAINERS:
        yield _command(trainer, trainer.word)


def _command(trainer: Trainer, name: str) -> click.Command:
    # Late: these are more than a hundred options, and a shell that completes the kind needs none.
    from gangline.cli.jobs import options as flags  # noqa: PLC0415

    function = partial(_run, trainer)
    function.__doc__ = (
        f"{trainer.runs}\n\nOptions come before the command; its words are joined and run by the "
        "shell."
    )
    made: Any = output_option(*OUTPUTS)(_keep(function))
    made = flags.with_options(namespace_options(made), flags.of_kind(trainer.word, trainer.clean))
    made = click.argument("command", nargs=-1, type=click.UNPROCESSED)(made)
    settings = {"allow_interspersed_args": False}
    return click.command(
        name, cls=JobCommand, context_settings=settings, hidden=name != trainer.word
    )(made)


def _keep(function: Any) -> Any:
    """Give a partial function what click asks functions for."""

    def command(*args: Any, **options: Any) -> None:
        function(*args, **options)

    command.__doc__ = function.__doc__
    return click.pass_context(command)


def _run(
    trainer: Trainer,
    context: click.Context,
    target: Target,
    output: str,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    from gangline.cli.jobs.reading import read_objects  # noqa: PLC0415
    from gangline.cli.submission import Sending, submit  # noqa: PLC0415
    from gangline.cli.submit_settings import filled_in  # noqa: PLC0415

    options = filled_in(context, options, target.profile, commands)
    sending = Sending(
        dry_run=options.pop("dry_run"),
        wait=options.pop("wait"),
        logs=options.pop("logs"),
        check=not options.pop("no_check"),
        output=output,
    )
    if not command:
        raise _missing("what is to run? Put the command last", '"python train.py"')
    _refuse_late_options(context, command)
    if not options["image"] and not options.get("worker_image"):
        raise _missing("--image must be given", "--image pytorch/pytorch:2.7.1")
    objects = read_objects(trainer.word, trainer.trainer, " ".join(command), options)
    submit(objects, target, sending)


def _refuse_late_options(context: click.Context, command: tuple[str, ...]) -> None:
    """Catch ``"python train.py" --wait``, where a quoted command would swallow our option."""
    ours = {name for option in context.command.params for name in option.opts}
    late = [word for word in command[1:] if word.partition("=")[0] in ours]
    if late and len(command[0].split()) > 1:
        raise CommandError(
            f"{late[0]} stands behind the command, which would get it instead of gangline",
            hint="Put it before the command, or inside the command's quotes.",
            code=ExitCode.USAGE,
        )


def _missing(message: str, example: str) -> CommandError:
    return CommandError(message, hint=f"For example: {example}", code=ExitCode.USAGE)
