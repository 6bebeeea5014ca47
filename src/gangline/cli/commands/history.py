"""``gangline history``: ended jobs, how each of them went, and what they used.

``history forget`` deletes from it.
"""

import asyncio
import csv
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gangline.api.figures import format_scaled
from gangline.cli.commands.brain import database_option, prepared_default_database
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import Group, group
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, cluster_command, namespace_command
from gangline.cli.render.output import format_age, format_table, print_result, print_status

if TYPE_CHECKING:
    from gangline.sdk.history import AsyncHistory

_GIB = 2**30
_OUTCOMES = ("succeeded", "failed", "deleted")
_CSV = (
    "namespace", "kind", "name", "uid", "owner", "queue", "outcome", "cause", "submitted",
    "started", "finished", "restarts",
)  # fmt: skip


class _HistoryGroup(Group):
    """A group whose first argument may be a job: ``history JOB`` as well as ``history get JOB``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_help = bool(args) and args[0] in ("-h", "--help")
        if not asks_help and (not args or args[0] not in self.commands):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@group(
    "history",
    examples="""
        gangline history
        gangline history get digits
        gangline history list --outcome failed --limit 20
        gangline history export -o csv
    """,
    cls=_HistoryGroup,
)
def history_command() -> None:
    """Show ended jobs, also deleted ones, or one of them: how it went and what it used.

    'gangline history' is short for 'history list', 'history JOB' for 'history get JOB'.
    """


brain_option = click.option(
    "--brain", "brain_url", default="", metavar="URL", help="Address of the Brain."
)


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--outcome", type=click.Choice(_OUTCOMES), help="Only jobs that ended so."),
        click.option("--stem", default="", help="Only jobs of this name without its numbers."),
        click.option("--owner", default="", help="Only jobs of this user."),
        click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces."),
    ):
        command = option(command)
    return command


_limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many jobs."
)


def _history(cluster: ClusterSession, brain_url: str) -> "AsyncHistory":
    from gangline.sdk.history import AsyncHistory

    async def connect() -> Any:
        return cluster.client

    return AsyncHistory(connect, cluster.namespace, brain_url)


def _filters(cluster: ClusterSession, given: dict[str, Any]) -> dict[str, str | int]:
    namespace = "" if given.pop("all_namespaces") else cluster.namespace
    return {name: value for name, value in {"namespace": namespace, **given}.items() if value}


@history_command.command(
    "list",
    examples="""
        gangline history list --owner ann
        gangline history list -A -o json
    """,
)
@namespace_command
@_filter_options
@_limit_option
@brain_option
@output_option("table", "json", "yaml", "name")
async def list_command(
    cluster: ClusterSession, limit: int, brain_url: str, output: str, **given: Any
) -> None:
    """Show ended jobs, the latest first."""
    await _list(cluster, limit, brain_url, output, given)


@history_command.command(
    "get",
    examples="""
        gangline history get digits
        gangline history get digits --uid 4a5eb915-660f-464d-ac80-1a9a08ac1ebe -o json
    """,
)
@click.argument("job")
@namespace_command
@click.option("--uid", default="", help="An earlier job of this name.")
@click.option("--logs", is_flag=True, help="Print all stored lines of failed replicas.")
@brain_option
@output_option("table", "json", "yaml", "name")
async def get_command(
    job: str, cluster: ClusterSession, uid: str, logs: bool, brain_url: str, output: str
) -> None:
    """Show how a job went: its timeline, why it failed, and what each replica used."""
    await _get(cluster, job, uid, brain_url, output, logs=logs)


@history_command.command(
    "show",
    examples="""
        gangline history show --owner ann
        gangline history show digits -o json
    """,
)
@click.argument("job", default="")
@namespace_command
@_filter_options
@_limit_option
@brain_option
@output_option("table", "json", "yaml", "name")
async def show_command(
    job: str, cluster: ClusterSession, limit: int, brain_url: str, output: str, **given: Any
) -> None:
    """Show what 'history list' shows, and for JOB what 'history get' shows."""
    if job:
        await _get(cluster, job, "", brain_url, output)
    else:
        await _list(cluster, limit, brain_url, output, given)


@history_command.command(
    "export",
    examples="""
        gangline history export -A > jobs.jsonl
        gangline history export --owner ann -o csv
    """,
)
@namespace_command
@_filter_options
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Only jobs that ended at this time (UTC) or later.",
)
@brain_option
@output_option("json", "csv")
async def export_command(
    cluster: ClusterSession, since: datetime | None, brain_url: str, output: str, **given: Any
) -> None:
    """Write all ended jobs to standard output: JSON with records, one job per line, or CSV."""
    from gangline.sdk.advice import BrainUnavailable, NotInHistory

    history, filters = _history(cluster, brain_url), _filters(cluster, given)
    if since is not None:
        filters["since"] = round(since.replace(tzinfo=UTC).timestamp() * 1000)
    if output == "csv":
        click.echo(",".join(_CSV))
    try:
        async for page in history.pages(sys.maxsize, **filters):
            for job in page["jobs"]:
                if output == "csv":
                    click.echo(_csv_line(job))
                    continue
                with suppress(NotInHistory):  # it was deleted from the history meanwhile
                    run = await history.get(job["name"], job["namespace"], uid=job["uid"])
                    click.echo(msgspec.json.encode(run))
    except BrainUnavailable as error:
        raise CommandError(str(error), code=ExitCode.UNREACHABLE) from error


def _csv_line(job: dict[str, Any]) -> str:
    times = {
        name: time.isoformat(timespec="seconds") if (time := _time(job.get(f"{name}_ms"))) else ""
        for name in ("submitted", "started", "finished")
    }
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(_cell({**job, **times}.get(name)) for name in _CSV)
    return line.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
    return f"'{value}" if is_formula else value


async def _list(
    cluster: ClusterSession, limit: int, brain_url: str, output: str, given: dict[str, Any]
) -> None:
    from gangline.sdk.advice import BrainUnavailable

    namespaces = given["all_namespaces"]
    jobs: list[dict[str, Any]] = []
    hidden, has_more = 0, False
    try:
        async for page in _history(cluster, brain_url).pages(limit, **_filters(cluster, given)):
            jobs += page["jobs"]
            hidden, has_more = hidden + page["hidden"], bool(page["next"])
    except BrainUnavailable as error:
        raise CommandError(str(error), code=ExitCode.UNREACHABLE) from error
    if print_result(jobs, output, [_name(job) for job in jobs]):
        return
    if jobs:
        click.echo(format_jobs(jobs, namespaces=namespaces))
    else:
        print_status("No ended jobs in the history.")
    if hidden:
        print_status(f"{hidden} jobs of other namespaces are not shown.")
    if has_more:
        print_status(f"There are more; --limit shows up to 500, now {limit}.")


async def _get(
    cluster: ClusterSession, job: str, uid: str, brain_url: str, output: str, *, logs: bool = False
) -> None:
    from gangline.sdk.advice import BrainUnavailable

    try:
        run = await _history(cluster, brain_url).get(job, uid=uid)
    except BrainUnavailable as error:
        raise CommandError(str(error), code=ExitCode.UNREACHABLE) from error
    if not print_result(run, output, [_name(run["job"])]):
        click.echo(format_run(run, logs=logs))


def _name(job: dict[str, Any]) -> str:
    return f"{job['kind'].lower()}/{job['name']}"


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


def format_run(run: dict[str, Any], *, logs: bool = False) -> str:
    """Return one job: how it went, and the runs of its pods."""
    job = run["job"]
    head = ["REPLICA", "RUN", "NODE", "DURATION", "PEAK MEMORY", "LIMIT", "CPU P95", "CAUSE"]
    rows = []
    for pod in run.get("pods", ()):
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
    lines = [format_jobs([job], namespaces=True), *_record_lines(run, logs=logs)]
    if rows:
        lines += ["", format_table(head, rows)]
    segments = [
        segment for segment in run.get("segments", ()) if segment.get("quality", "good") == "good"
    ]
    if segments:
        steps = sum(segment["steps"] for segment in segments)
        mean = (
            sum(segment["stepSeconds"]["mean"] * segment["steps"] for segment in segments) / steps
        )
        lines += [
            "",
            f"Steps: {steps} in {len(segments)} segments, {format_scaled(mean, 's')} each.",
        ]
    return "\n".join(lines)


_TAIL = 10
"""Lines of a failed replica that are printed without ``--logs``."""


def _record_lines(run: dict[str, Any], *, logs: bool) -> list[str]:
    record = run.get("record")
    if not record:
        return ["", "How it went is not recorded, or not any more."]
    head = ["TIME", "WHAT", "REPLICA", "CAUSE", "BLAME", "DETAILS"]
    rows = [
        [
            _clock(entry["at_ms"]),
            entry["what"],
            entry.get("replica", ""),
            entry.get("cause", ""),
            entry.get("blame", ""),
            entry.get("text", ""),
        ]
        for entry in record.get("timeline", ())
    ]
    lines = ["", format_table(head, rows)] if rows else []
    if waits := record.get("explanations"):
        lines += ["", "Why it waited:"]
        lines += [f"  {_clock(wait['at_ms'])}  {wait['text']}" for wait in waits]
    if diagnosis := record.get("diagnosis"):
        lines += ["", diagnosis["summary"], *(f"  - {step}" for step in diagnosis["nextSteps"][:1])]
    if goodput := record.get("goodput"):
        lines += ["", f"Goodput: {goodput['share']:.1%} of {goodput['wallSeconds']:.0f} s."]
    for tail in run.get("logs", ()):
        shown = tail["lines"] if logs else tail["lines"][-_TAIL:]
        attempt = f", attempt {tail['attempt'] + 1}" if tail["attempt"] else ""
        lines += ["", f"Last lines of {tail['replica']}{attempt}:"]
        lines += [f"  | {line}" for line in shown]
    return lines


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


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
            return store.forget(asked)
        finally:
            store.close()
    except StoreError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
