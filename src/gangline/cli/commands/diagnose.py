"""``diagnose``: why a job failed or is pending. ``doctor``: common problems of a cluster.

Both print findings with remedies.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import ExitCode
from gangline.cli.params.command import command
from gangline.cli.params.options import job_argument, output_option
from gangline.cli.params.session import ClusterSession, job_command, namespace_command
from gangline.cli.render.output import print_result, print_text

if TYPE_CHECKING:
    from gangline.sdk.cluster_checks import ClusterCheckResult
    from gangline.sdk.diagnosis import Diagnosis, Finding


_MAX_CONSEQUENCES = 8
"""Limit of consequences to print; with many replicas they are usually equal."""


@command(
    "diagnose",
    examples="""
        gangline diagnose digits
        gangline diagnose digits -n research -o json
    """,
)
@job_argument
@job_command
@output_option("table", "json", "yaml")
async def diagnose_command(job: str, cluster: ClusterSession, output: str) -> None:
    """Find the replica that failed first and its cause, the consequences, and the remedy."""
    from gangline.sdk.diagnosis import diagnose_job, diagnosis_data

    diagnosis = await diagnose_job(cluster.jobs, job, cluster.namespace)
    if not print_result(diagnosis_data(diagnosis), output):
        print_text(format_diagnosis(diagnosis))


def format_diagnosis(diagnosis: "Diagnosis") -> str:
    lines = [f"Job {diagnosis.job}: {diagnosis.state}", "", diagnosis.summary]
    root = diagnosis.root
    if root is not None and root.evidence:
        lines += [f"  {line}" for line in root.evidence.splitlines()]
    if diagnosis.last_lines:
        lines += ["", f"Last lines of {root.replica if root else ''}:"]
        lines += [f"  | {line}" for line in diagnosis.last_lines]
    if others := diagnosis.consequences:
        lines += ["", "What followed:"]
        lines += [f"  {_consequence(other)}" for other in others[:_MAX_CONSEQUENCES]]
        more = len(others) - _MAX_CONSEQUENCES
        lines += [f"  and {more} more"] if more > 0 else []
    if diagnosis.next_steps:
        lines += ["", "Next:", *(f"  {step}" for step in diagnosis.next_steps)]
    return "\n".join(lines)


def _consequence(finding: "Finding") -> str:
    code = "" if finding.exit_code is None else f", exit code {finding.exit_code}"
    return f"{finding.replica}: {finding.cause}{code}"


_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "unknown": "cyan"}


@command(
    "doctor",
    examples="""
        gangline doctor
        gangline doctor -n research   # also checks claims and rights there
    """,
)
@namespace_command
@output_option("table", "json", "yaml")
async def doctor_command(cluster: ClusterSession, output: str) -> int:
    """Check job kinds, rights, nodes, GPUs, operator, scheduler, storage, DNS, clocks, images."""
    from gangline.sdk.cluster_checks import check_cluster

    checks = await check_cluster(cluster.client, cluster.namespace)
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
        print_text(format_checks(checks))
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
