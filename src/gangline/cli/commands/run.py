"""``gangline run``: start a training script on this node, as torchrun does.

The flags are those of torchrun and dlrover-run, which the launcher parses with ``argparse`` as
those programs do. Click passes them on unchanged.
"""

import click

from gangline.cli.params.command import Command, command
from gangline.elastic.launcher.flags import EXAMPLES, FLAG_GROUPS


class LauncherCommand(Command):
    """``run``, whose options are the launcher's."""

    def option_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        return {
            title: [(flag.usage, flag.description) for flag in flags]
            for title, flags in FLAG_GROUPS.items()
        }


@command(
    "run",
    examples=EXAMPLES,
    cls=LauncherCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(arguments: tuple[str, ...]) -> int:
    """Start a training script on this node, as torchrun does."""
    from gangline.elastic.launcher.main import main

    return main(arguments)
