"""``gangline history``: ended jobs and what they used; ``history forget`` deletes from it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import click

from gangline.api.figures import format_scaled
from gangline.cli.commands.brain import database_option, prepared_default_database
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import Group, group
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, cluster_command, namespace_command
from gangline.cli.render.output import format_age, format_table, print_result, print_status

_GIB = 2**30


class _HistoryGroup(Group):
    """A group whose first argument may be a job: ``history JOB`` as well as ``history forget``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_help = bool(args) and args[0] in ("-h", "--help")
        if not asks_help and (not args or args[0] not in self.commands):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@group(
    "history",
    examples="""
        gangline history
        gangline history digits
        gangline history --outcome failed --limit 20
    """,
    cls=_HistoryGroup,
)
def history_command() -> None:
    """Show ended jobs, or one with what each replica used.

    'history' and 'history JOB' are short for 'history show'.
    """


brain_option = click.option(
    "--brain", "brain_url", default="", metavar="URL", help="Address of the Brain."
)


@history_command.command(
    "show",
    examples="""
        gangline history show --owner ann
        gangline history show digits -o json
    """,
)
@click.argument("job", default="")
@namespace_command
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("--owner", default="", help="Only jobs of this user.")
@click.option("--stem", default="", help="Only jobs of this name without its numbers.")
@click.option(
    "--outcome",
    type=click.Choice(["succeeded", "failed", "deleted"]),
    help="Only jobs that ended like this.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@brain_option
@output_option("table", "json", "yaml", "name")
async def show_command(  # noqa: PLR0913, PLR0917
    job: str,
    cluster: ClusterSession,
    all_namespaces: bool,
    owner: str,
    stem: str,
    outcome: str | None,
    limit: int,
    brain_url: str,
    output: str,
) -> None:
    """Show ended jobs, the latest first; for JOB also what each replica used."""
    from gangline.sdk.advice import BrainClient, BrainUnavailable, brain_token, find_brain

    filters = {"owner": owner, "stem": stem, "outcome": outcome}
    filters["namespace"] = "" if all_namespaces else cluster.namespace
    given: dict[str, str | int] = {name: value for name, value in filters.items() if value}
    try:
        url = await find_brain(cluster.client, brain_url)
        async with BrainClient(url, await brain_token(cluster.client, url)) as brain:
            if job:
                answer = await brain.run(cluster.namespace, job)
            else:
                answer = await brain.history(limit=limit, **given)
    except BrainUnavailable as error:
        raise CommandError(str(error), code=ExitCode.UNREACHABLE) from error
    jobs = [answer["job"]] if job else answer["jobs"]
    names = [f"{job_row['kind'].lower()}/{job_row['name']}" for job_row in jobs]
    if print_result(answer if job else jobs, output, names):
        return
    if job:
        click.echo(format_run(answer))
        return
    if jobs:
        click.echo(format_jobs(jobs, namespaces=all_namespaces))
    else:
        print_status("No ended jobs in the history.")
    if answer["hidden"]:
        print_status(f"{answer['hidden']} jobs of other namespaces are not shown.")
    if answer["next"]:
        print_status(f"There are more; --limit shows up to 500, now {limit}.")


def format_jobs(jobs: list[dict[str, Any]], *, namespaces: bool = False) -> str:
    """Return a table of jobs."""
    now = datetime.now(UTC)
    head = ["NAME", "KIND", "OUTCOME", "WORKERS", "DURATION", "ENDED", "RESTARTS", "OWNER", "CAUSE"]
    rows = []
    for job in jobs:
        began, ended = _time(job.get("started_ms")), _time(job.get("finished_ms"))
        row = [
            job["name"],
            job["kind"],
            job["outcome"],
            job.get("workers_asked"),
            format_age(began, ended) if began and ended else "N/A",
            f"{format_age(ended, now)} ago" if ended else "N/A",
            job.get("restarts", 0),
            job.get("owner", ""),
            job.get("cause", ""),
        ]
        rows.append([job["namespace"], *row] if namespaces else row)
    return format_table(["NAMESPACE", *head] if namespaces else head, rows)


def format_run(run: dict[str, Any]) -> str:
    """Return one job with the runs of its pods."""
    job = run["job"]
    head = ["REPLICA", "RUN", "NODE", "DURATION", "PEAK MEMORY", "LIMIT", "CPU P95", "CAUSE"]
    rows = []
    for pod in run["pods"]:
        began, ended = _time(pod["started_ms"]), _time(pod.get("ended_ms"))
        millis = pod.get("cpu_p95_millis")
        rows.append(
            [
                f"{pod['role']}-{pod['rank']}",
                pod["number"],
                pod.get("node", ""),
                format_age(began, ended or datetime.now(UTC)),
                _memory(pod.get("peak_memory_bytes")),
                _memory(pod.get("limit_memory_bytes")),
                "" if millis is None else f"{millis / 1000:.2f}",
                pod.get("cause", ""),
            ]
        )
    lines = [format_jobs([job], namespaces=True)]
    if rows:
        lines += ["", format_table(head, rows)]
    segments = [segment for segment in run["segments"] if segment.get("quality", "good") == "good"]
    if segments:
        steps = sum(segment["steps"] for segment in segments)
        mean = sum(segment["step_mean_us"] * segment["steps"] for segment in segments) / steps / 1e6
        lines += [
            "",
            f"Steps: {steps} in {len(segments)} segments, {format_scaled(mean, 's')} each.",
        ]
    return "\n".join(lines)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _memory(amount: int | None) -> str:
    return "" if not amount else f"{amount / _GIB:.2f}Gi"


@history_command.command(
    "forget",
    examples="""
        gangline history forget --namespace research --job digits
        gangline history forget --owner ann --yes
    """,
)
@database_option
@click.option("--owner", default="", help="Delete all jobs of this user.")
@click.option("--namespace", "-n", "space", default="", help="Delete all jobs of this namespace.")
@click.option("--job", default="", help="Delete the jobs of this name; needs --namespace.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_command
async def forget_command(
    cluster: ClusterSession, database: str, owner: str, space: str, job: str, yes: bool
) -> None:
    """Delete jobs from the history for good, also from what was learned from them.

    Jobs of this cluster that are submitted later are stored again. It works on the database itself,
    so it is for those who run the Brain.
    """
    if bool(owner) == bool(space):
        raise click.UsageError("give --owner or --namespace (with --job for one name)")
    if job and not space:
        raise click.UsageError("--job needs --namespace")
    import gangline.brain.store.engine  # noqa: F401 - a missing package is named before the question

    subject = f"user {owner}" if owner else f"namespace {space}"
    if not yes:
        click.confirm(f"Delete {f'job {job} of ' if job else 'all jobs of '}{subject}?", abort=True)
    from gangline.api.resources import NAMESPACES

    identity = (await cluster.client.get(NAMESPACES, "kube-system")).metadata.uid
    url = database or prepared_default_database()
    deleted = await asyncio.to_thread(_forget, url, identity, owner, space, job)
    click.echo(f"{deleted} jobs were deleted.")


def _forget(database: str, cluster: str, owner: str, namespace: str, job: str) -> int:
    from gangline.brain.store.deletion import Forget
    from gangline.brain.store.engine import open_store
    from gangline.brain.store.errors import StoreError

    asked = Forget(cluster=cluster, owner=owner, namespace=namespace, name=job)
    try:
        store = open_store(database, migrate=False)
        try:
            return store.forget(asked).jobs
        finally:
            store.close()
    except StoreError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
