"""``logs``: the lines of a job's replicas, merged, each marked with its replica."""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.options import job_argument
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.log_lines import LogLineWriter
from gangline.cli.render.output import print_status
from gangline.cli.submit import flags

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.sdk.jobs import Job
    from gangline.sdk.logs import LogOptions


@command(
    "logs",
    examples="""
        gangline logs digits -f
        gangline logs digits --all --tail 20
        gangline logs digits -i worker-3 --previous
        gangline logs digits --rank 0,2-4 --grep 'loss|error'
    """,
)
@job_argument
@job_command
@click.option(
    "-f", "--follow", is_flag=True, help="Print lines as they are written, until the job ends."
)
@click.option(
    "-t",
    "--tail",
    type=click.IntRange(-1),
    default=-1,
    help="Only the last N lines of each replica.",
)
@click.option("--since", help="Only lines newer than 30s, 10m or 2h.")
@click.option("--since-time", default="", help="Only lines since 2026-01-31T12:00:00Z.")
@click.option("-a", "--all", "everyone", is_flag=True, help="All replicas, merged by time.")
@click.option(
    "-i",
    "--instance",
    default="",
    shell_complete=completers.instances,
    help="Only this replica: worker-3, or the name of its pod.",
)
@click.option("--rank", "ranks", default="", help="Only replicas of these ranks, such as 0,2-4.")
@click.option("--role", default="", help="Only replicas of this role, such as worker.")
@click.option(
    "--grep", "pattern", default="", help="Only lines that match this regular expression."
)
@click.option(
    "-c",
    "--container",
    default="",
    shell_complete=completers.containers,
    help="Container; default: the first.",
)
@click.option("--timestamps", is_flag=True, help="Put the time before each line.")
@click.option("-p", "--previous", is_flag=True, help="Containers before the last restart.")
@click.option("--prefix/--no-prefix", default=None, help="Mark lines with their replica.")
async def logs_command(job: str, cluster: ClusterSession, **given: Any) -> None:
    """Print the log of a job, in order of time.

    Without --all, --rank, --role or -i it is the log of the replica of rank 0.
    """
    source = await cluster.jobs.get(job, cluster.namespace)
    _check_instance(source, given["instance"])
    options = _options(source, given)
    meant = 1 if options.replica else len(options.replicas) or source.desired
    marked = meant > 1 if given["prefix"] is None else given["prefix"]
    writer = LogLineWriter(
        marked=marked, timestamps=given["timestamps"], pattern=_pattern(given["pattern"])
    )
    await _copy_lines(cluster.client, source, options, writer, follow=given["follow"])
    if not writer.lines:
        await _explain_no_lines(cluster.client, source, options)
    if not _selects_replicas(given) and source.desired > 1 and (writer.lines or not source.reason):
        print_status(f"({options.replica} only: --all prints all {source.desired} replicas.)")


@command("logviewer", examples="gangline logviewer digits")
@job_argument
@job_command
async def logviewer_command(job: str, cluster: ClusterSession) -> None:
    """Print the command that prints the log of a job, and follows it until the job ends.

    Arena prints the address of a web page here. Gangline has no such page.
    """
    job_found = await cluster.jobs.get(job, cluster.namespace)
    print_status("There is no web page of logs. This command prints them, those of ended pods too:")
    click.echo(_log_command(job_found, cluster))


def _log_command(job: "Job", cluster: ClusterSession) -> str:
    words = ["gangline", "logs", job.name, "-n", job.namespace]
    words += ["-T", cluster.kind] if cluster.kind else []
    words += ["--kubeconfig", cluster.target.kubeconfig] if cluster.target.kubeconfig else []
    words += ["--context", cluster.target.context] if cluster.target.context else []
    words += ["--all"] if job.desired > 1 else []
    return shlex.join([*words, *(() if job.state.finished else ("-f",))])


async def _explain_no_lines(client: "ApiClient", job: "Job", options: "LogOptions") -> None:
    """Report why there are no lines.

    Raises:
        CommandError: lines of earlier containers were requested, and there are none.
    """
    from gangline.sdk.logs import deleted_pods

    narrowed = (options.tail, options.since_seconds, options.since_time or None)
    if options.previous and narrowed == (None, None, None):
        has_archive = await deleted_pods(client, job) is not None
        why = "no log of an earlier pod exists" if has_archive else _NO_ARCHIVE
        raise CommandError(
            f"No earlier lines: no container was restarted, and {why}.",
            hint="Without --previous the lines of the current containers are printed.",
        )
    if job.state.finished and not job.replicas and await deleted_pods(client, job) is None:
        print_status(f"The job's pods are deleted, and {_NO_ARCHIVE}.")
    elif job.reason:
        print_status(f"No lines yet: {job.reason}")


_NO_ARCHIVE = "this cluster does not store logs of deleted pods"


async def _copy_lines(
    client: "ApiClient", job: "Job", options: "LogOptions", writer: LogLineWriter, *, follow: bool
) -> None:
    from gangline.cli.submit.submission import follow_lines
    from gangline.sdk.client import JobClient
    from gangline.sdk.logs import read_logs

    if follow and not job.state.finished and not options.previous:
        await follow_lines(JobClient(client, job.kind.trainer), job, writer, options)
        return
    async for line in read_logs(client, job, options):
        writer.write(line)


def _selects_replicas(given: dict[str, Any]) -> bool:
    return any(given[name] for name in ("everyone", "instance", "ranks", "role"))


def _options(job: "Job", given: dict[str, Any]) -> "LogOptions":
    """Return which lines of which replicas to print."""
    from gangline.sdk.logs import LogOptions

    instance = given["instance"]
    if not _selects_replicas(given):
        instance = job.chief.name if job.chief else next(iter(job.ranks), "")
        instance = job.chief.short_name if job.chief else instance
    return LogOptions(
        tail=None if given["tail"] < 0 else given["tail"],
        since_seconds=flags.parse_seconds("--since", given["since"]) if given["since"] else None,
        since_time=flags.check_time("--since-time", given["since_time"]),
        previous=given["previous"],
        replica=instance,
        replicas=frozenset(select_ranks(job.ranks, given["ranks"])),
        role=given["role"],
        container=given["container"],
    )


def select_ranks(names: Sequence[str], text: str) -> list[str]:
    """Return the replicas of ranks such as ``0,2-4``; none for an empty text.

    Raises:
        BadParameter: the text is invalid, or the job has no such rank.
    """
    selected: list[str] = []
    for part in filter(None, (part_text.strip() for part_text in text.split(","))):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        if ends is None:
            raise click.BadParameter(f"{part!r}: write ranks as 0,2-4", param_hint="--rank")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last >= len(names) or first > last:
            raise click.BadParameter(
                f"{part!r}: the job has the ranks 0 to {len(names) - 1}", param_hint="--rank"
            )
        selected += names[first : last + 1]
    return selected


def _pattern(text: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--grep") from error


def _check_instance(job: "Job", instance: str) -> None:
    instance_names = {
        name for replica in job.replicas for name in (replica.name, replica.short_name)
    }
    instance_names |= {name for short in job.ranks for name in (short, f"{job.name}-{short}")}
    if instance and instance_names and instance not in instance_names:
        names = ", ".join(job.ranks[:8]) + (", ..." if len(job.ranks) > 8 else "")
        raise CommandError(
            f"Invalid value for --instance: the job has no replica {instance!r}; it has {names}",
            code=ExitCode.USAGE,
        )
