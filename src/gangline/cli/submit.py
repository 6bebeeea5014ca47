"""``submit_manifests``: training jobs from files, or from flags (``submit pytorch``)."""

from typing import Any

import click
from click.core import ParameterSource

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import namespace_options, output_option
from gangline.cli.submit_kinds import OUTPUTS, KindGroup
from gangline.cli.target import ClusterTarget

_EPILOG = """\b
Examples:
  gangline submit -f job.yaml --wait
  gangline submit -f job.yaml --set spec.pytorchReplicaSpecs.Worker.replicas=7
  gangline submit pytorch --name digits --workers 3 --image pytorch:2 "python digits.py"
"""


@click.group("submit", cls=KindGroup, invoke_without_command=True, epilog=_EPILOG)
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="YAML or JSON; - for stdin."
)
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a field of the jobs."
)
@click.option("--dry-run", is_flag=True, help="Print the objects, create nothing.")
@click.option(
    "--no-check", is_flag=True, help="Do not check that claims and other references exist."
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
    from gangline.cli.manifests import read_manifests  # noqa: PLC0415
    from gangline.cli.set_fields import apply_changes  # noqa: PLC0415
    from gangline.cli.submission import SubmitOptions, submit_manifests  # noqa: PLC0415

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
