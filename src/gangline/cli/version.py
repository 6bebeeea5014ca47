"""``gangline version``."""

import platform
from importlib.metadata import version as package_version

import click


@click.command("version")
@click.option("--short", is_flag=True, help="Print the number alone.")
def version_command(short: bool) -> None:
    """Print the version of gangline and of Python."""
    number = package_version("gangline")
    click.echo(number if short else f"gangline {number} (Python {platform.python_version()})")
