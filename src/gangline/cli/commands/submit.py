"""``submit``: training jobs from files (``-f``), or from flags with one subcommand for each kind.

``JOB_COMMANDS`` is the table of kinds. The subcommand of a kind has more than a hundred options, so
it is built only when it is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from gangline.cli.arena import REFUSED_KINDS
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import Group, command, group
from gangline.cli.params.options import namespace_options, output_option
from gangline.cli.params.target import ClusterTarget
from gangline.cli.submit.command import DRY_RUN, DRY_RUN_SCHEDULE, SCHEDULE, ArenaCommand

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


OUTPUTS = ("text", "name", "yaml", "json")


class JobCommandSpec(NamedTuple):
    """A kind of job on the command line."""

    word: str
    """Name of the subcommand."""
    trainer: str
    """Name in job lists."""
    aliases: tuple[str, ...]
    help: str
    """Help text of the subcommand."""
    clean: str = "Running"
    """Default of ``--clean-task-policy``; empty: the kind has no such policy."""
    has_runtime: bool = False
    """True if a runtime may give image and command."""


_START = "Start {} job that runs COMMAND in each of its pods."

JOB_COMMANDS = (
    JobCommandSpec("pytorch", "pytorchjob", ("pytorchjob", "py"), _START.format("a PyTorch")),
    JobCommandSpec("tf", "tfjob", ("tfjob", "tensorflow"), _START.format("a TensorFlow")),
    JobCommandSpec(
        "mpi",
        "mpijob",
        ("mpijob", "mj", "horovod", "horovodjob", "hj"),
        "Start an MPI job whose launcher runs COMMAND, such as mpirun, on its workers.",
        clean="All",
    ),
    JobCommandSpec(
        "deepspeed",
        "mpijob",
        ("deepspeedjob", "dp"),
        "Start a DeepSpeed job whose launcher runs COMMAND, such as deepspeed train.py.",
        clean="All",
    ),
    JobCommandSpec(
        "mindspore", "msjob", ("mindsporejob", "msjob", "ms"), _START.format("a MindSpore")
    ),
    JobCommandSpec("paddle", "paddlejob", ("paddlejob",), _START.format("a PaddlePaddle")),
    JobCommandSpec("jax", "jaxjob", ("jaxjob",), _START.format("a JAX")),
    JobCommandSpec("xgboost", "xgboostjob", ("xgboostjob", "xgb"), _START.format("an XGBoost")),
    JobCommandSpec(
        "elastic",
        "elasticjob",
        ("elasticjob", "et", "etjob"),
        "Start an elastic job, whose number of workers may change, that runs COMMAND in each.",
    ),
    JobCommandSpec(
        "train",
        "trainjob",
        ("trainjob", "trj"),
        "Start a TrainJob: COMMAND in the pods of a training runtime.",
        clean="",
        has_runtime=True,
    ),
)


_JOB_COMMANDS_BY_NAME = {
    name: entry for entry in JOB_COMMANDS for name in (entry.word, *entry.aliases)
}


class KindGroup(Group):
    """A group that builds the command of a kind when it is used; aliases are hidden.

    Building the commands of all kinds takes longer than shell completion may take.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_JOB_COMMANDS_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        trainer = _JOB_COMMANDS_BY_NAME.get(cmd_name)
        return None if trainer is None else _command(trainer, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a kind; for an unknown kind, suggest the closest."""
        if args and args[0] not in _JOB_COMMANDS_BY_NAME and not ctx.resilient_parsing:
            if args[0] in REFUSED_KINDS:
                raise CommandError(REFUSED_KINDS[args[0]], code=ExitCode.USAGE)
            ctx.fail(_unknown_kind(args[0]))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let ``--dry-run=schedule`` before a kind stand for its hidden flag."""
        own = next((i for i, word in enumerate(args) if word in _JOB_COMMANDS_BY_NAME), len(args))
        asked = f"{DRY_RUN}={SCHEDULE}"
        words = [DRY_RUN_SCHEDULE if word == asked else word for word in args[:own]]
        return super().parse_args(ctx, [*words, *args[own:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete a kind from the table alone, or an option."""
        from click.shell_completion import CompletionItem

        kinds = sorted((command.word, command.help) for command in JOB_COMMANDS)
        completions = [
            CompletionItem(word, help=runs) for word, runs in kinds if word.startswith(incomplete)
        ]
        return completions + click.Command.shell_complete(self, ctx, incomplete)


def _unknown_kind(word: str) -> str:
    from gangline.api.suggestions import did_you_mean

    if word.endswith((".yaml", ".yml", ".json")):
        return f"{word!r} is not a kind of job; a file is given with -f {word}"
    kinds = ", ".join(command.word for command in JOB_COMMANDS)
    near = did_you_mean(word.lower(), _JOB_COMMANDS_BY_NAME)
    return f"There is no kind of job {word!r}." + (near or f" Kinds: {kinds}; -f submits a file.")


def kind_commands() -> Iterator[click.Command]:
    """Build the command of each kind."""
    for trainer in JOB_COMMANDS:
        yield _command(trainer, trainer.word)


def _command(trainer: JobCommandSpec, name: str) -> click.Command:
    # Late: more than a hundred options, which completion of the kind does not need.
    from gangline.cli.submit.options import kind_examples, kind_options

    @click.pass_context
    def run(*args: Any, **options: Any) -> None:
        _run(trainer, *args, **options)

    run.__doc__ = (
        f"{trainer.help}\n\nOptions come before the command; a shell runs the joined command."
    )
    built: Any = output_option(*OUTPUTS)(run)
    built = kind_options(trainer.word, trainer.clean)(namespace_options(built))
    built = click.argument("command", nargs=-1, type=click.UNPROCESSED)(built)
    settings = {"allow_interspersed_args": False}
    decorate = command(
        name,
        cls=ArenaCommand,
        context_settings=settings,
        hidden=name != trainer.word,
        examples=kind_examples(trainer.word),
    )
    return decorate(built)


def _run(
    trainer: JobCommandSpec,
    context: click.Context,
    target: ClusterTarget,
    output: str,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    from gangline.cli.submit.builders import takes_code
    from gangline.cli.submit.from_flags import build_objects
    from gangline.cli.submit.submission import SubmitOptions, submit_manifests
    from gangline.cli.submit.user_settings import apply_settings
    from gangline.cli.submit.working_folder import note_local_files

    options = apply_settings(context, options, target.profile, kind_commands)
    sending = SubmitOptions(
        dry_run=options.pop("dry_run"),
        schedule=options.pop("schedule"),
        wait=options.pop("wait"),
        logs=options.pop("logs"),
        check=not options.pop("no_check"),
        like_history=options.pop("like_history"),
        output=output,
    )
    if not command and not trainer.has_runtime:
        raise _missing_argument("no command given; put it last", '"python train.py"')
    _refuse_late_options(context, command)
    if not trainer.has_runtime and not options["image"] and not options.get("worker_image"):
        raise _missing_argument("--image is required", "--image pytorch/pytorch:2.7.1")
    objects = build_objects(trainer.word, trainer.trainer, " ".join(command), options, target)
    if command and not options["sync_mode"] and takes_code(options):
        note_local_files(objects[0], context.find_root().obj.arguments, len(command), target)
    submit_manifests(objects, target, sending)


def _refuse_late_options(context: click.Context, command: tuple[str, ...]) -> None:
    """Refuse options behind a quoted command: ``"python train.py" --wait`` would run with
    ``--wait``.
    """
    ours = {name for option in context.command.params for name in option.opts}
    late = [word for word in command[1:] if word.partition("=")[0] in ours]
    if late and len(command[0].split()) > 1:
        raise CommandError(
            f"{late[0]} is behind the command, which would receive it instead of gangline",
            hint="Put it before the command, or inside the quotes of the command.",
            code=ExitCode.USAGE,
        )


def _missing_argument(message: str, example: str) -> CommandError:
    return CommandError(message, hint=f"For example: {example}", code=ExitCode.USAGE)


_EXAMPLES = """
gangline submit -f job.yaml --wait
gangline submit -f job.yaml --set spec.pytorchReplicaSpecs.Worker.replicas=7
gangline submit pytorch --name digits --workers 3 --image pytorch:2 \\
  "python digits.py"
"""


@group("submit", cls=KindGroup, invoke_without_command=True, examples=_EXAMPLES)
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="YAML or JSON; - for stdin."
)
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a field of the jobs."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the objects, create nothing; with =schedule: where and when they would start.",
)
@click.option(DRY_RUN_SCHEDULE, "schedule", is_flag=True, hidden=True)
@click.option(
    "--no-check", is_flag=True, help="Do not check that claims and other references exist."
)
@click.option(
    "--like-history", is_flag=True, help="Fill in what is left out, from similar jobs of the past."
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit with 6 if a job fails.")
@click.option("--logs", is_flag=True, help="Print the replicas' logs until the job ends.")
@namespace_options
@output_option(*OUTPUTS)
@click.pass_context
def submit_command(
    context: click.Context,
    /,
    files: tuple[str, ...],
    changes: tuple[str, ...],
    target: ClusterTarget,
    output: str,
    **options: bool,
) -> None:
    """Start training jobs from files, or from flags with a subcommand."""
    if context.invoked_subcommand is not None:
        if files or changes:
            given = "-f" if files else "--set"
            raise click.UsageError(f"give either {given} or a kind of job, not both", context)
        context.default_map = {context.invoked_subcommand: _command_line_options(context)}
        return
    if not files:
        raise CommandError(
            "no job given: use a file with -f, or a kind of job and its flags",
            hint="See 'gangline submit --help'.",
            code=ExitCode.USAGE,
        )
    from gangline.cli.submit.manifests import apply_changes, read_manifests
    from gangline.cli.submit.submission import SubmitOptions, submit_manifests

    manifests = [manifest for file in files for manifest in read_manifests(file)]
    check = not options.pop("no_check")
    submit_manifests(
        apply_changes(manifests, changes),
        target,
        SubmitOptions(output=output, check=check, **options),
    )


def _command_line_options(context: click.Context) -> dict[str, Any]:
    """Return options that precede the kind on the command line; they apply to the subcommand."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
