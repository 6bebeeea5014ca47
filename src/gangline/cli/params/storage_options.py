"""Options of the embedded API server's store."""

from pathlib import Path

import click

durability_option = click.option(
    "--durability",
    type=click.Choice(["disk", "process"]),
    default="disk",
    show_default=True,
    help="Answer a write when it survives a power failure (disk), or a killed process (process).",
)
encryption_key_option = click.option(
    "--encryption-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of keys that encrypt Secrets at rest; default: a generated key.",
)
