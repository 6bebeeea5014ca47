"""``doctor``: checks of a cluster for common problems, with remedies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import namespace_options, output_option
from gangline.cli.output import tell
from gangline.cli.target import Target

if TYPE_CHECKING:
    from gangline.sdk.checks import Check

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "unknown": "cyan"}


@click.command("doctor")
@namespace_options
@output_option("table", "json", "yaml")
def doctor_command(target: Target, output: str) -> int:
    """Check job kinds, rights, nodes, GPUs, operator, scheduler, storage, DNS, clocks, images."""

    async def examined() -> "list[Check]":
        from gangline.sdk.doctor import examine  # noqa: PLC0415

        async with target.connect() as client:
            return await examine(client, target.namespace_of(client))

    checks = run(examined())
    data = [
        {
            "name": check.name,
            "verdict": str(check.verdict),
            "finding": check.finding,
            "remedy": check.remedy,
        }
        for check in checks
    ]
    if not tell(data, output):
        click.echo(report(checks))
    failed = any(check.verdict == "failed" for check in checks)
    return ExitCode.UNEXPECTED if failed else ExitCode.DONE


def report(checks: "Sequence[Check]") -> str:
    """Return the results as lines, each with its remedy below."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        word = click.style(f"{check.verdict:<8}", fg=_COLOURS[check.verdict])
        lines.append(f"{word} {check.name:<{width}}  {check.finding}".rstrip())
        if check.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {check.remedy}")
    return "\n".join(lines)
