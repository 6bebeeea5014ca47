"""``gangline run``: start a training script on this node, as torchrun does.

The flags are those of torchrun and dlrover-run, which the launcher parses with ``argparse`` as
those programs do. Click passes them on unchanged.
"""

import click

from gangline.cli.params.command import command


@command(
    "run",
    examples="""
        gangline run --nproc-per-node 4 train.py --epochs 3
        gangline run --nnodes 1:4 --max-restarts 3 --network-check train.py
    """,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(arguments: tuple[str, ...]) -> int:
    """Start a training script on this node, as torchrun does."""
    from gangline.elastic.launcher.main import main

    return main(arguments)
