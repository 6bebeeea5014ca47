"""``submit``: training jobs from files, or (``submit pytorch``) from flags."""

from copy import copy

import click

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import Target, namespace_options, output_option
from gangline.cli.submit_pytorch import pytorch_command

OUTPUTS = ("text", "name", "yaml", "json")
_EPILOG = """\b
Examples:
  gangline submit -f job.yaml --wait
  gangline submit pytorch --name digits --workers 3 --image pytorch:2 "python digits.py"
"""


@click.group("submit", invoke_without_command=True, epilog=_EPILOG)
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="YAML or JSON; - for stdin."
)
@click.option("--dry-run", is_flag=True, help="Print what would be created, create nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with 6 if a job fails.")
@namespace_options
@output_option(*OUTPUTS)
@click.pass_context
def submit_command(
    context: click.Context,
    files: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    target: Target,
    output: str,
) -> None:
    """Start training jobs from files, or from flags with a subcommand."""
    if context.invoked_subcommand is not None:
        if files:
            raise click.UsageError("give either -f or a kind of job, not both", context)
        return
    if not files:
        raise CommandError(
            "what to submit? Give a file with -f, or a kind of job and its flags",
            hint="See 'gangline submit --help'.",
            code=ExitCode.USAGE,
        )
    from gangline.cli.manifests import read_manifests  # noqa: PLC0415
    from gangline.cli.submission import submit  # noqa: PLC0415

    manifests = [manifest for file in files for manifest in read_manifests(file)]
    submit(manifests, target, output=output, dry_run=dry_run, wait=wait)


submit_command.add_command(pytorch_command)
_long_name = copy(pytorch_command)
_long_name.hidden = True
submit_command.add_command(_long_name, "pytorchjob")
