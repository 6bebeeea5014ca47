"""``gangline advise``: what the Brain advises for jobs."""

from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import command
from gangline.cli.params.options import optional_job_argument, output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.output import (
    format_table,
    print_result,
    print_status,
    print_text,
    serialize,
)

if TYPE_CHECKING:
    from gangline.api.brain.job_advice import AdviceItem, JobAdvice

_INDENT = "  "


@command(
    "advise",
    examples="""
        gangline advise             # a line for each job with advice
        gangline advise digits
        gangline advise digits --diff
    """,
)
@optional_job_argument
@job_command
@click.option("-A", "--all-namespaces", is_flag=True, help="Advice of all namespaces.")
@click.option("--diff", is_flag=True, help="Print the patch that writes the advice into JOB.")
@output_option("table", "json", "yaml", "name")
async def advise_command(
    job: str, cluster: ClusterSession, all_namespaces: bool, diff: bool, output: str
) -> None:
    """Show advice on JOB with its reasons, or a line for each job with advice.

    --diff prints a JSON patch for 'kubectl patch --type=json'. Nothing is changed.
    """
    if diff and not job:
        raise click.UsageError("--diff needs the name of a job")
    if not job:
        return await _print_list(cluster, all_namespaces, output)
    advice = await _find(cluster, job)
    if diff:
        click.echo(serialize(await _patch(cluster, job, advice), "json"))
        return None
    if not print_result(_data(advice), output, [f"jobadvice/{advice.metadata.name}"]):
        print_text(format_advice(advice))
    return None


async def _find(cluster: ClusterSession, job: str) -> "JobAdvice":
    from gangline.sdk.advice import job_advice

    job_found = await cluster.jobs.get(job, cluster.namespace)
    # The advice on the second of two jobs of one name has the kind as suffix.
    for name in (f"{job_found.name}.{job_found.kind.trainer}", job_found.name):
        advice = await job_advice(cluster.client, job_found.namespace, name)
        owners = advice.metadata.owner_references if advice else []
        if advice is not None and any(owner.uid == job_found.uid for owner in owners):
            return advice
    raise CommandError(
        f"There is no advice on {job_found.qualified_name}.",
        hint="A Brain must run ('gangline up --brain'), and know runs that are similar to the job; "
        "'gangline history' shows them.",
        code=ExitCode.NOT_FOUND,
    )


async def _patch(cluster: ClusterSession, job: str, advice: "JobAdvice") -> list[dict[str, Any]]:
    from gangline.sdk.advice import advised_patch

    job_found = await cluster.jobs.get(job, cluster.namespace)
    stored = await cluster.jobs.manifest(job_found.qualified_name, job_found.namespace)
    return advised_patch(job_found.kind, stored, advice.status.items)


async def _print_list(cluster: ClusterSession, all_namespaces: bool, output: str) -> None:
    from gangline.sdk.advice import list_advice

    advices = await list_advice(cluster.client, cluster.namespace_to_list(all_namespaces))
    advices = [advice for advice in advices if advice.status.items]
    names = [f"jobadvice/{advice.metadata.name}" for advice in advices]
    if print_result([_data(advice) for advice in advices], output, names):
        return
    if not advices:
        print_status("No advice.")
        return
    head = ["JOB", "WHAT", "NOW", "ADVISED", "WHY"]
    rows = [
        [advice.metadata.name, _subject(item), item.now, item.advised, item.sentence]
        for advice in advices
        for item in advice.status.items
    ]
    if all_namespaces:
        head.insert(0, "NAMESPACE")
        spaces = [advice.metadata.namespace for advice in advices for _ in advice.status.items]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
    click.echo(format_table(head, rows))


def _subject(item: "AdviceItem") -> str:
    rank = "" if item.rank is None else f"-{item.rank}"
    return f"{item.role}{rank} {item.what}".strip()


def _data(advice: "JobAdvice") -> dict[str, Any]:
    import msgspec

    status: dict[str, Any] = msgspec.to_builtins(advice.status)
    meta = advice.metadata
    return {"namespace": meta.namespace, "name": meta.name, **status}


def format_advice(advice: "JobAdvice") -> str:
    """Return advice as text: the numbers as a table, then each reason."""
    status = advice.status
    lines = [f"Job: {advice.metadata.namespace}/{advice.metadata.name} ({status.job_kind})"]
    lines.append(f"Mode: {status.mode or 'advise'}")
    if status.history:
        lines.append(f"Note: {status.history}")
    rows = [
        [_subject(item), item.now, item.advised, item.confidence, item.state]
        for item in status.items
    ]
    if not rows:
        return "\n".join([*lines, "No advice at present."])
    head = ["WHAT", "NOW", "ADVISED", "CONFIDENCE", "STATE"]
    lines += ["", format_table(head, rows, _INDENT), ""]
    for item in status.items:
        lines.append(f"{_INDENT}{item.sentence}")
        if item.held_because:
            lines.append(f"{_INDENT}{_INDENT}Held: {item.held_because}")
    return "\n".join(lines)
