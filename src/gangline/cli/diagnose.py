"""``diagnose``: why a job failed or is pending, and what to do."""

from typing import TYPE_CHECKING, Any

import click

from gangline.cli import completing
from gangline.cli.event_loop import run_async
from gangline.cli.options import translate_job_errors, namespace_options, output_option, type_option
from gangline.cli.output import print_result
from gangline.cli.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.sdk.diagnosis import Diagnosis, Finding

_MAX_CONSEQUENCES = 8
"""Limit of consequences to print; with many replicas they are usually equal."""


@click.command("diagnose")
@click.argument("job", shell_complete=completing.jobs)
@namespace_options
@type_option
@output_option("table", "json", "yaml")
def diagnose_command(job: str, target: ClusterTarget, kind: str, output: str) -> None:
    """Find the replica that failed first and its cause, the consequences, and the remedy."""

    async def found() -> "Diagnosis":
        from gangline.sdk.client import JobClient  # noqa: PLC0415
        from gangline.sdk.evidence import diagnose_job  # noqa: PLC0415

        async with target.connect() as client:
            return await diagnose_job(JobClient(client, kind), job, target.namespace_of(client))

    with translate_job_errors():
        diagnosis = run_async(found())
    if not print_result(diagnosis_data(diagnosis), output):
        click.echo(format_diagnosis(diagnosis))


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
        lines += [f"  {_consequence(each)}" for each in others[:_MAX_CONSEQUENCES]]
        more = len(others) - _MAX_CONSEQUENCES
        lines += [f"  and {more} more"] if more > 0 else []
    if diagnosis.next_steps:
        lines += ["", "Next:", *(f"  {step}" for step in diagnosis.next_steps)]
    return "\n".join(lines)


def _consequence(finding: "Finding") -> str:
    code = "" if finding.exit_code is None else f", exit code {finding.exit_code}"
    return f"{finding.replica}: {finding.cause}{code}"


def diagnosis_data(diagnosis: "Diagnosis") -> dict[str, Any]:
    return {
        "job": diagnosis.job,
        "status": str(diagnosis.state),
        "summary": diagnosis.summary,
        "root": _data(diagnosis.root) if diagnosis.root else None,
        "consequences": [_data(each) for each in diagnosis.consequences],
        "nextSteps": list(diagnosis.next_steps),
        "lastLines": list(diagnosis.last_lines),
    }


def _data(finding: "Finding") -> dict[str, Any]:
    return {
        "replica": finding.replica,
        "cause": finding.cause,
        "blame": str(finding.blame),
        "meaning": finding.meaning,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
        "node": finding.node,
        "exitCode": finding.exit_code,
        "time": finding.at.isoformat() if finding.at else None,
    }
