"""``doctor``: checks of a cluster for common problems, with remedies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gangline.cli.event_loop import run_async
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import namespace_options, output_option
from gangline.cli.output import print_result
from gangline.cli.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.sdk.checks import ClusterCheckResult

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "unknown": "cyan"}


@click.command("doctor")
@namespace_options
@output_option("table", "json", "yaml")
def doctor_command(target: ClusterTarget, output: str) -> int:
    """Check job kinds, rights, nodes, GPUs, operator, scheduler, storage, DNS, clocks, images."""

    async def examined() -> "list[ClusterCheckResult]":
        from gangline.sdk.doctor import check_cluster  # noqa: PLC0415

        async with target.connect() as client:
            return await check_cluster(client, target.namespace_of(client))

    checks = run_async(examined())
    data = [
        {
            "name": check.name,
            "verdict": str(check.status),
            "finding": check.finding,
            "remedy": check.remedy,
        }
        for check in checks
    ]
    if not print_result(data, output):
        click.echo(format_checks(checks))
    failed = any(check.status == "failed" for check in checks)
    return ExitCode.UNEXPECTED if failed else ExitCode.DONE


def format_checks(checks: "Sequence[ClusterCheckResult]") -> str:
    """Return the results as lines, each with its remedy below."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        word = click.style(f"{check.status:<8}", fg=_COLOURS[check.status])
        lines.append(f"{word} {check.name:<{width}}  {check.finding}".rstrip())
        if check.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {check.remedy}")
    return "\n".join(lines)
