r"""The command line of the master, which also accepts the flags of DLRover's master.

    gangline master --job-name train --port 50001 --journal /var/run/train.journal
    python -m gangline.elastic.master --job_name train --namespace ml --platform pyk8s \
        --journal-configmap ml/train-journal
"""

import asyncio
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.elastic.master.journal import FileJournal, Journal, JournalError
from gangline.elastic.master.settings import BrainUrlError, MasterSettings, check_brain_url

if TYPE_CHECKING:
    from gangline.elastic.master.facts.publication import Publication

EXIT_CANNOT_START = 3
"""Exit code if another process uses the port or the journal: an immediate restart would not help.
"""

_UPSTREAM_IGNORED = (
    "node_num", "pending_timeout", "pending_fail_strategy", "service_type", "pre_check_ops",
    "pre_check_bypass", "hang_detection", "hang_downtime", "max_hang_downtime",
    "xpu_type", "training_elastic_mode", "dynamic_failover_extension", "enable_dashboard",
    "dashboard_port", "task_process_timeout",
)  # fmt: skip
"""Flags of DLRover's master that have no meaning for this one."""


def _upstream_flags(command: click.Command) -> click.Command:
    for name in _UPSTREAM_IGNORED:
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        command.params.append(click.Option([*spellings], hidden=True, expose_value=False))
    return command


@click.command("master")
@click.option("--job-name", "--job_name", "job", envvar="ELASTIC_JOB_NAME", default="",
              help="The job's name; clients of another job are refused.")  # fmt: skip
@click.option("--namespace", envvar="GANGLINE_NAMESPACE", default="default",
              help="Namespace of a --journal-configmap that names none.")  # fmt: skip
@click.option("--platform", type=click.Choice(["local", "pyk8s", "k8s"]), default="local",
              help="Accepted for DLRover's manifests; the journal flags decide.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS",
              help="An address to listen on; may be repeated; all by default.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=50001, show_default=True,
              help="The port to listen on; 0 for any free one.")  # fmt: skip
@click.option("--listen-descriptor", type=int, default=None, hidden=True,
              help="An inherited listening socket, in place of --port.")  # fmt: skip
@click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="A file to store the master's state in.")  # fmt: skip
@click.option("--journal-configmap", metavar="[NAMESPACE/]NAME", default=None,
              help="A ConfigMap to store it in; created if missing.")  # fmt: skip
@click.option("--heartbeat", "heartbeat_s", type=float, default=1.0, show_default=True,
              help="Seconds between heartbeats of an agent.")  # fmt: skip
@click.option("--silence", "silence_s", type=float, default=15.0, show_default=True,
              help="Seconds after which a silent node counts as dead.")  # fmt: skip
@click.option("--grace", "grace_s", type=float, default=2.0, show_default=True,
              help="Seconds that an agent may take to reconnect.")  # fmt: skip
@click.option("--linger", "linger_s", type=float, default=None,
              help="End this many seconds after all workers succeeded; else never.")  # fmt: skip
@click.option("--segment-seconds", "segment_s", envvar="GANGLINE_SEGMENT_SECONDS",
              type=click.FloatRange(1, 3600), default=300.0, show_default=True,
              help="Longest stretch of training that is published as one fact. Shorter ones let "
                   "the Brain decide sooner, from noisier measurements.")  # fmt: skip
@click.option("--metrics/--no-metrics", "serves_metrics", default=True, show_default=True,
              help="Answer GET /metrics on the port.")  # fmt: skip
@click.option("--brain", "brain_url", metavar="URL", default=None,
              help="Send facts of the job to the Brain at this URL.")  # fmt: skip
@click.option("--job-uid", envvar="JOB_UID", default="",
              help="Unique identifier of the job in its facts.")  # fmt: skip
@click.option("--port-file", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="A file to write the port to once it is open.")  # fmt: skip
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]))  # fmt: skip
def master_command(  # noqa: PLR0913, PLR0917
    namespace: str,
    platform: str,
    journal: Path | None,
    journal_configmap: str | None,
    brain_url: str | None,
    job_uid: str,
    port_file: Path | None,
    log_level: str,
    **settings: object,
) -> None:
    """Run the master of one elastic job: rendezvous, data shards, key-value store, goodput.

    The job's secret is read from GANGLINE_JOB_SECRET (hexadecimal digits). Flags of DLRover's
    master that have no meaning here are accepted and ignored.
    """
    del platform
    if journal is not None and journal_configmap is not None:
        raise click.UsageError("--journal and --journal-configmap exclude each other")
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    store = FileJournal(journal) if journal is not None else Journal()
    configuration = MasterSettings(**settings)  # type: ignore[arg-type]
    place = _place(journal_configmap, namespace)
    try:
        brain_url = brain_url and check_brain_url(brain_url)
    except BrainUrlError as error:
        raise click.UsageError(f"--brain {error}") from error
    facts = partial(
        _open_publication, configuration.job, place[0] if place else namespace, job_uid,
        in_cluster=place is not None, brain_url=brain_url,
    )  # fmt: skip
    sys.exit(_run(configuration, store, place, port_file, facts))


_upstream_flags(master_command)


def _place(configmap: str | None, namespace: str) -> tuple[str, str] | None:
    if configmap is None:
        return None
    before, _, name = configmap.rpartition("/")
    return before or namespace, name


def _open_publication(
    name: str, namespace: str, uid: str, *, in_cluster: bool, brain_url: str | None
) -> "AbstractAsyncContextManager[Publication | None]":
    from gangline.elastic.master.facts.publication import open_publication
    from gangline.elastic.master.segments.document import ReportedJob

    identity = ReportedJob(name, namespace, uid or uuid.uuid4().hex)
    return open_publication(identity, in_cluster=in_cluster, brain_url=brain_url)


def _run(
    settings: MasterSettings,
    journal: Journal,
    configmap: tuple[str, str] | None,
    port_file: Path | None,
    open_facts: "Callable[[], AbstractAsyncContextManager[Publication | None]]",
) -> int:
    from gangline.elastic.protocol.channel import read_job_secret

    try:
        secret = read_job_secret(os.environ, settings.job)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not secret.is_private:
        logging.getLogger(__name__).warning(
            "GANGLINE_JOB_SECRET is not set: the key is derived from the job's name and not secret"
        )

    def listening(port: int) -> None:
        if port_file is not None:
            new = port_file.with_name(port_file.name + ".new")
            new.write_text(f"{port}\n", encoding="utf-8")
            new.replace(port_file)
        click.echo(f"master of {settings.job or 'a job'} listens on port {port}")

    async def serve() -> None:
        from gangline.elastic.master.main import run_master

        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if configmap is None:
            async with open_facts() as publication:
                await run_master(settings, secret, journal, stop, listening, publication)
            return
        from gangline.elastic.master import cluster_journal as cluster

        about = cluster.job_reference(os.environ, namespace=configmap[0])
        async with (
            cluster.cluster_journal(*configmap, on_fenced=stop.set, job=about) as cluster_journal,
            open_facts() as publication,
        ):
            await run_master(settings, secret, cluster_journal, stop, listening, publication)

    # Training images need not have it: with some thousand nodes it is faster.
    new_loop = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve())
    except (JournalError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_CANNOT_START
    return 0
